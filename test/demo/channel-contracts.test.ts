import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, concat, type Hex, numberToHex, zeroAddress } from 'viem'
import { account } from '../../src/demo/accounts'
import {
  balanceOf,
  type Chain,
  execute,
  mine,
  type NodeReceipt,
  RpcError,
} from '../../src/demo/chains'
import { revert, snapshot, startChains } from '../harness/chains'
import {
  type ChannelConfig,
  channelAbi,
  channelIdOf,
  channelOf,
  claimOf,
  claimWithSignature,
  depositBy3009,
  depositByPermit2,
  depositCall,
  eip3009Collector,
  errorOf,
  eventsOf,
  permit2Collector,
  refundWithSignature,
  settlementAddress,
} from '../harness/channel-contract'
import { base, encode, payee, robinhood } from '../harness/stablecoin'
import { brokenPermit, permit2612 } from '../harness/upto-contract'

const token = base.asset.address
const stranger = account(8).address
const [payer, other] = [account(1).address, account(3).address]
/** Of account 1, of account 3 that has not approved Permit2. */
const [first, second] = [channelOf(), channelOf({ payer: other })]
const channelId = channelIdOf(first)

let chain: Chain
let chainB: Chain
let clean: Hex

beforeAll(async () => {
  const [a, b] = await startChains([base, robinhood])
  if (!a || !b) throw new Error('not started')
  chain = a
  chainB = b
  clean = await snapshot(chain)
})
beforeEach(async () => {
  await revert(chain, clean)
  clean = await snapshot(chain)
})
afterAll(() => Promise.all([chain?.stop(), chainB?.stop()]))

async function send(data: Hex, from = stranger, on = chain): Promise<NodeReceipt> {
  const call = { from, to: settlementAddress, data, gas: 1_000_000n }
  const [receipt] = await execute(on, [call])
  if (!receipt) throw new Error('no receipt')
  return receipt
}

const run = async (data: Hex, from?: Address) => eventsOf(await send(data, from))

/** Name of the custom error, or the revert text. */
async function refusal(data: Hex, from = stranger, at: { on?: Chain; to?: Address } = {}) {
  const { on = chain, to = settlementAddress } = at
  const request = { from, to, data, gas: numberToHex(1_000_000) }
  const error = await on.rpc('eth_call', [request, 'latest']).catch((reason: unknown) => reason)
  if (!(error instanceof RpcError)) throw new Error(`expected a revert, not ${error}`)
  if (typeof error.data !== 'string') throw error
  return errorOf(error.data as Hex)
}

async function read(functionName: string, args: readonly unknown[]): Promise<Hex> {
  const data = encode(channelAbi, functionName, args)
  return (await chain.rpc('eth_call', [{ to: settlementAddress, data }, 'latest'])) as Hex
}

/** The words of an answer. */
const words = async (functionName: string, args: readonly unknown[]): Promise<bigint[]> =>
  ((await read(functionName, args)).match(/[0-9a-f]{64}/g) ?? []).map((word) => BigInt(`0x${word}`))

const held = (holder: Address) => balanceOf(chain, token, holder)
const call = (functionName: string, ...args: unknown[]) => encode(channelAbi, functionName, args)

test('ids and digests are those of EIP-712', async () => {
  const vector = channelOf({ receiver: account(2).address, receiverAuthorizer: account(0).address })
  const id = '0x560ac10ebe81fa253d825b1d8e9b1302407170d92024b2d28ee1a1b5a9d44a02'
  const voucher = '0x73e63d2a6ed087d01aec56068e6456d8e103519fbcb1ff6e8e4f7ed559b24978'
  const claims = '0x4b0af0019e4100157c3572e674bda7c997bd7d46170a9ac83adc21b4ffb0d5f2'
  const refund = '0xd47e4609d5a3aeec8fac107e99113b561981dc94d5daab918577242275ce33f1'
  expect(channelIdOf(vector)).toBe(id)
  expect(await read('getChannelId', [vector])).toBe(id)
  expect(await read('getVoucherDigest', [id, 1000n])).toBe(voucher)
  const claim = await claimOf(vector, 700n, { ceiling: 1000n })
  expect(await read('getClaimBatchDigest', [[claim]])).toBe(claims)
  expect(await read('getRefundDigest', [id, 0n, 500n])).toBe(refund)
})

test('deposits, claims of several channels, a settlement and a refund', async () => {
  const secondId = channelIdOf(second)
  const created = await run(await depositBy3009(first, 1000n))
  expect(created).toEqual([
    { eventName: 'ChannelCreated', channelId, config: first },
    { eventName: 'Deposited', channelId, sender: stranger, amount: 1000n, newBalance: 1000n },
  ])
  const approval = await permit2612(3, 500n)
  await send(await depositByPermit2(second, 500n, { signer: 3, approval }))
  expect(await run(await depositByPermit2(first, 500n))).toEqual([
    { eventName: 'Deposited', channelId, sender: stranger, amount: 500n, newBalance: 1500n },
  ])
  expect(await held(settlementAddress)).toBe(2000n)

  const claims = [
    await claimOf(first, 300n, { ceiling: 400n }),
    await claimOf(second, 500n, { signer: 3 }),
  ]
  const claimed = { eventName: 'Claimed', sender: stranger }
  expect(await run(await claimWithSignature(claims))).toEqual([
    { ...claimed, channelId, claimAmount: 300n, newTotalClaimed: 300n },
    { ...claimed, channelId: secondId, claimAmount: 500n, newTotalClaimed: 500n },
  ])
  // Again, with a row that is new: old ones change nothing.
  const more = await claimOf(first, 400n)
  expect(await run(call('claim', [...claims, more]), payee)).toEqual([
    { ...claimed, sender: payee, channelId, claimAmount: 100n, newTotalClaimed: 400n },
  ])
  expect(await words('channels', [channelId])).toEqual([1500n, 400n])
  expect(await words('receivers', [payee, token])).toEqual([900n, 0n])

  const settled = { eventName: 'Settled', receiver: payee, token, sender: stranger, amount: 900n }
  const settle = call('settle', payee, token)
  expect(await run(call('multicall', [settle, settle]))).toEqual([settled])
  expect(await held(payee)).toBe(900n)
  expect(await words('receivers', [payee, token])).toEqual([900n, 900n])

  const before = await held(payer)
  const refunded = { eventName: 'Refunded', channelId, sender: stranger }
  const refund = await refundWithSignature(first, 100n)
  expect(await run(refund)).toEqual([{ ...refunded, amount: 100n }])
  expect(await refusal(refund)).toBe('InvalidRefundNonce')
  expect(await run(await refundWithSignature(first, 5000n, { nonce: 1n }))).toEqual([
    { ...refunded, amount: 1000n },
  ])
  // Nothing is left, and the nonce rises.
  expect(await run(call('refund', first, 1n), account(6).address)).toEqual([])
  expect(await words('refundNonce', [channelId])).toEqual([3n])
  expect((await held(payer)) - before).toBe(1100n)
  expect(await held(settlementAddress)).toBe(0n)
})

test('a withdrawal takes what is unclaimed at its end, and a refund before it makes it smaller', async () => {
  await send(await depositBy3009(first, 1000n))
  const initiate = (amount: bigint) => call('initiateWithdraw', first, amount)
  const finalize = call('finalizeWithdraw', first)
  expect(await refusal(initiate(1001n), payer)).toBe('WithdrawAmountExceedsAvailable')
  expect(await refusal(initiate(0n), payer)).toBe('NothingToWithdraw')
  expect(await refusal(initiate(1n))).toBe('InvalidChannel')
  expect(await refusal(finalize, payer)).toBe('WithdrawalNotPending')
  const [started] = await run(initiate(1000n), payer)
  const [, initiatedAt = 0n] = await words('pendingWithdrawals', [channelId])
  const finalizeAfter = Number(initiatedAt) + 86_400
  const initiated = { eventName: 'WithdrawInitiated', channelId, amount: 1000n, finalizeAfter }
  expect(started).toEqual(initiated)
  expect(await refusal(initiate(1n), payer)).toBe('WithdrawalAlreadyPending')

  await send(await refundWithSignature(first, 300n))
  expect(await words('pendingWithdrawals', [channelId])).toEqual([700n, initiatedAt])
  await send(await claimWithSignature([await claimOf(first, 200n)]))
  await moveTo(finalizeAfter - 1)
  expect(await refusal(finalize, payer)).toBe('WithdrawDelayNotElapsed')
  await moveTo(finalizeAfter)
  expect(await refusal(finalize)).toBe('NotAuthorizedToFinalizeWithdraw')
  expect(await run(finalize, payer)).toEqual([
    { eventName: 'WithdrawFinalized', channelId, sender: payer, amount: 500n },
  ])
  expect(await words('channels', [channelId])).toEqual([200n, 200n])
  expect(await words('pendingWithdrawals', [channelId])).toEqual([0n, 0n])
  // Vouchers reserve nothing.
  const late = await claimWithSignature([await claimOf(first, 201n)])
  expect(await refusal(late)).toBe('ClaimExceedsBalance')
})

const moveTo = async (time: number) => {
  await chain.rpc('evm_setNextBlockTimestamp', [time])
  await mine(chain)
}

test('a channel without claims closes by its refund, which ends a withdrawal, and opens again', async () => {
  await send(await depositBy3009(first, 1000n))
  await send(call('initiateWithdraw', first, 600n), payer)
  expect(await run(await refundWithSignature(first, 1000n))).toEqual([
    { eventName: 'Refunded', channelId, sender: stranger, amount: 1000n },
    { eventName: 'ChannelClosed', channelId, config: first },
  ])
  expect(await words('pendingWithdrawals', [channelId])).toEqual([0n, 0n])
  const [again] = await run(await depositByPermit2(first, 1n))
  expect(again).toEqual({ eventName: 'ChannelCreated', channelId, config: first })
})

describe('attack:', () => {
  test('deposits that another did not sign, or that bring no money', async () => {
    const foreign = channelOf({ receiver: stranger })
    const text = 'FiatTokenV2: invalid signature'
    expect(await refusal(await depositBy3009(foreign, 10n, { of: first }))).toBe(text)
    expect(await refusal(await depositBy3009(first, 10n, { signer: 2 }))).toBe(text)
    expect(await refusal(await depositByPermit2(foreign, 10n, { of: first }))).toBe('InvalidSigner')
    const used = await depositByPermit2(first, 10n)
    await send(used)
    expect(await refusal(used)).toBe('InvalidNonce')
    const approval = await permit2612(3, 11n)
    const wrong = await depositByPermit2(second, 10n, { signer: 3, approval })
    expect(await refusal(wrong)).toBe('Permit2612AmountMismatch')
    const collect = encode(collectAbi, 'collect', [payer, token, 1n, channelId, '0x'])
    for (const to of [eip3009Collector, permit2Collector])
      expect(await refusal(collect, stranger, { to })).toBe('OnlyX402BatchSettlement')
    // A collector that does nothing, and one that calls settle() and throws what that threw.
    const idle = '0x00000000000000000000000000000000000000aa'
    const reentrant = '0x00000000000000000000000000000000000000bb'
    const settle = concat(['0x639db32a8f5f525f5f6044601c5f73', settlementAddress, '0x5af1'])
    await chain.rpc('anvil_setCode', [idle, '0x00'])
    await chain.rpc('anvil_setCode', [reentrant, concat([settle, '0x60045f5f3e60045ffd'])])
    expect(await refusal(depositCall(first, 1n, idle))).toBe('DepositCollectionFailed')
    expect(await refusal(depositCall(first, 1n, reentrant))).toBe('ReentrancyGuardReentrantCall')
  })

  test('deposits of a payer whose approval failed take nothing, and those that Permit2 knows pass', async () => {
    const approval = brokenPermit(10n)
    const data = await depositByPermit2(second, 10n, { signer: 3, approval })
    expect(await refusal(data)).toBe('TRANSFER_FROM_FAILED')
    await send(await depositByPermit2(first, 10n, { approval }))
    expect(await words('channels', [channelId])).toEqual([10n, 0n])
  })

  test('deposits into channels that nobody could use', async () => {
    const refused = (over: Partial<ChannelConfig>, amount = 1n, collector = eip3009Collector) =>
      refusal(depositCall({ ...first, ...over }, amount, collector))
    for (const name of ['payer', 'receiver', 'receiverAuthorizer', 'token'])
      expect(await refused({ [name]: zeroAddress })).toBe('InvalidChannel')
    for (const withdrawDelay of [899, 2_592_001])
      expect(await refused({ withdrawDelay })).toBe('WithdrawDelayOutOfRange')
    expect(await refused({}, 0n)).toBe('ZeroDeposit')
    expect(await refused({}, 1n, zeroAddress)).toBe('InvalidCollector')
    await send(await depositBy3009(first, 1n))
    expect(await refused({}, 2n ** 128n - 1n)).toBe('DepositOverflow')
  })

  test('claims above the ceiling or the balance, or with a voucher of another', async () => {
    await send(await depositBy3009(first, 1000n))
    const signed = async (claim: Awaited<ReturnType<typeof claimOf>>, signer = 6) =>
      refusal(await claimWithSignature([claim], signer))
    const good = await claimOf(first, 1000n)
    expect(await signed(await claimOf(first, 11n, { ceiling: 10n }))).toBe('ClaimExceedsCeiling')
    expect(await signed(await claimOf(first, 1001n))).toBe('ClaimExceedsBalance')
    expect(await signed(await claimOf(first, 1000n, { signer: 6 }))).toBe('InvalidSignature')
    const elsewhere = await claimOf(first, 1000n, { chainId: robinhood.chainId })
    expect(await signed(elsewhere)).toBe('InvalidSignature')
    expect(await signed({ ...good, signature: highS(good.signature) })).toBe(
      'ECDSAInvalidSignatureS',
    )
    const short = good.signature.slice(0, -2) as Hex
    expect(await signed({ ...good, signature: short })).toBe('ECDSAInvalidSignatureLength')
    const v = `${short}00` as Hex
    expect(await signed({ ...good, signature: v })).toBe('ECDSAInvalidSignature')
    expect(await signed(good, 1)).toBe('InvalidSignature')
    const mixed = await claimOf(channelOf({ receiverAuthorizer: stranger }), 1n)
    expect(await refusal(await claimWithSignature([good, mixed]))).toBe('NotReceiverAuthorizer')
    expect(await refusal(call('claim', [good]))).toBe('NotAuthorizedToClaim')
    expect(await refusal(call('claim', []), payee)).toBe('EmptyBatch')
    expect(await refusal(await claimWithSignature([]))).toBe('EmptyBatch')
    await send(await claimWithSignature([good]))
  })

  test('refunds that the side of the receiver did not sign', async () => {
    await send(await depositBy3009(first, 1000n))
    const by = async (signer: number) => refusal(await refundWithSignature(first, 1n, { signer }))
    expect(await by(1)).toBe('InvalidSignature')
    const early = await refundWithSignature(first, 1n, { nonce: 1n })
    expect(await refusal(early)).toBe('InvalidRefundNonce')
    expect(await refusal(await refundWithSignature(first, 0n))).toBe('ZeroRefund')
    expect(await refusal(call('refund', first, 1n), payer)).toBe('NotAuthorizedToRefund')
  })
})

test('without an authorizer of its own the payer signs as its wallet checks', async () => {
  const open = channelOf({ payerAuthorizer: zeroAddress })
  await send(await depositBy3009(open, 10n))
  const claim = await claimOf(open, 10n)
  // A wallet with code whose answer is not the magic value of ERC-1271.
  const code = await chain.rpc('eth_getCode', [token, 'latest'])
  await chain.rpc('anvil_setCode', [payer, code])
  expect(await refusal(call('claim', [claim]), payee)).toBe('InvalidSignature')
  await chain.rpc('anvil_setCode', [payer, '0x'])
  await send(call('claim', [claim]), payee)
})

test('USDG is deposited by Permit2 only', async () => {
  const config = channelOf({ token: robinhood.asset.address })
  const network = robinhood
  const data = await depositBy3009(config, 10n, { network })
  expect(await refusal(data, stranger, { on: chainB })).toBe('FacetNotFound')
  const receipt = await send(await depositByPermit2(config, 10n, { network }), stranger, chainB)
  expect(eventsOf(receipt)).toHaveLength(2)
})

const collectAbi = [
  {
    type: 'function',
    name: 'collect',
    stateMutability: 'nonpayable',
    outputs: [],
    inputs: ['address', 'address', 'uint256', 'bytes32', 'bytes'].map((type) => ({ type })),
  },
] as const

/** The other signature of the same key over the same digest. */
function highS(signature: Hex): Hex {
  const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
  const s = order - BigInt(`0x${signature.slice(66, 130)}`)
  const v = signature.endsWith('1b') ? '0x1c' : '0x1b'
  return concat([signature.slice(0, 66) as Hex, numberToHex(s, { size: 32 }), v])
}
