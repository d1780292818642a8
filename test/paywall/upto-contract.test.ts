import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { x402UptoPermit2ProxyABI } from '@x402/evm'
import { UptoEvmScheme } from '@x402/evm/upto/client'
import {
  type Abi,
  type Address,
  decodeErrorResult,
  decodeFunctionResult,
  getAddress,
  type Hex,
  multicall3Abi,
  numberToHex,
  parseAbi,
  toEventSelector,
  zeroAddress,
  zeroHash,
} from 'viem'
import { account } from '../../src/demo/accounts'
import {
  balanceOf,
  type Chain,
  execute,
  multicall3Address,
  type NodeReceipt,
  RpcError,
} from '../../src/demo/chains'
import * as Artifacts from '../../src/demo/contracts/artifacts'
import * as Permit from '../../src/protocol/Permit'
import * as Upto from '../../src/protocol/Upto'
import { deploy, revert, snapshot, startChains } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import { base, encode, later, payee } from '../harness/stablecoin'
import {
  brokenPermit,
  digestOf,
  type Payload,
  permit2Abi,
  permit2612,
  permitOf,
  reentrantToken,
  type Sponsoring,
  settle,
  settleWith,
  signUpto,
  type Terms,
  termsOf,
  uptoOf,
} from '../harness/upto-contract'
import * as Wallets from '../harness/wallets'

// The package does not list this error, which its contract has.
const proxy = [...x402UptoPermit2ProxyABI, ...parseAbi(['error InvalidAmount()'])]
const token = Artifacts.Stablecoin.abi
const relayer = account(0).address
const stranger = account(8).address
const transferTopic = toEventSelector('Transfer(address,address,uint256)')
const settledTopic = toEventSelector('Settled()')
const withPermitTopic = toEventSelector('SettledWithPermit()')

let chain: Chain
let clean: Hex

beforeAll(async () => {
  // In the past, so that the vector below does not expire.
  const [started] = await startChains([base], { extraArgs: ['--timestamp', '1700000000'] })
  if (!started) throw new Error('not started')
  chain = started
})
afterAll(() => chain?.stop())

async function send(data: Hex, from = relayer, to = Upto.proxyAddress): Promise<NodeReceipt> {
  const [receipt] = await execute(chain, [{ from, to, data, gas: 1_000_000n }])
  if (!receipt) throw new Error('no receipt')
  return receipt
}

async function call(data: Hex, from = relayer, to = Upto.proxyAddress): Promise<Hex> {
  const request = { from, to, data, gas: numberToHex(1_000_000) }
  return (await chain.rpc('eth_call', [request, 'latest'])) as Hex
}

/** Name and arguments of the error that a call reverts with, or its reason. */
async function failure(data: Hex, from = relayer): Promise<string> {
  const error = await call(data, from).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof RpcError)) throw new Error('expected the call to revert')
  return nameOf(error.data as Hex)
}

function nameOf(data: Hex): string {
  const errors: Abi = [...proxy, ...permit2Abi].filter((item) => item.type === 'error')
  const { errorName, args = [] } = decodeErrorResult({ abi: errors, data })
  return errorName === 'Error' ? String(args[0]) : `${errorName}(${args.join()})`
}

const held = (holder: Address) => balanceOf(chain, base.asset.address, holder)

const approve = (signer: number) =>
  send(
    encode(token, 'approve', [Permit.permit2Address, later]),
    account(signer).address,
    base.asset.address,
  )

/** Payer, payee and amount of the transfers in a receipt. */
const transfersOf = ({ logs }: NodeReceipt) =>
  logs
    .filter(({ address, topics }) => {
      return getAddress(address) === base.asset.address && topics[0] === transferTopic
    })
    .map(({ topics: [, from = '0x', to = '0x'], data }) => [
      getAddress(`0x${from.slice(-40)}`),
      getAddress(`0x${to.slice(-40)}`),
      BigInt(data),
    ])

const lastLog = ({ logs }: NodeReceipt) => {
  const log = logs.at(-1)
  return log && [getAddress(log.address), ...log.topics, log.data]
}

/** The whole word of Permit2's bitmap in which this nonce has its bit. */
async function usedNonces({ owner, permit }: Terms): Promise<bigint> {
  const data = encode(permit2Abi, 'nonceBitmap', [owner, permit.nonce >> 8n])
  return BigInt(await call(data, relayer, Permit.permit2Address))
}

describe('the proxy', () => {
  beforeEach(async () => {
    clean = await snapshot(chain)
  })
  afterEach(() => revert(chain, clean))

  test('the proxy of upto names Permit2 and the type of its witness', async () => {
    const read = async (functionName: 'PERMIT2' | 'WITNESS_TYPEHASH' | 'WITNESS_TYPE_STRING') => {
      const data = await call(encode(proxy, functionName, []))
      return decodeFunctionResult({ abi: proxy, functionName, data })
    }
    expect(await read('PERMIT2')).toBe(Permit.permit2Address)
    expect(await read('WITNESS_TYPEHASH')).toBe(
      '0xd4171c445a74218b01d4fd8af34ff1106580ea1e36ff837e64484bfaa2253b75',
    )
    expect(await read('WITNESS_TYPE_STRING')).toBe(
      'Witness witness)TokenPermissions(address token,uint256 amount)' +
        'Witness(address to,address facilitator,uint256 validAfter)',
    )
  })

  test('the proxy of upto moves the settled amount to the payee, once', async () => {
    const terms = uptoOf({})
    const signature = await signUpto(terms, 1)
    const before = await Promise.all([terms.owner, payee, relayer].map(held))
    const receipt = await send(settle(terms, 4_000n, signature))
    expect(transfersOf(receipt)).toEqual([[terms.owner, payee, 4_000n]])
    expect(lastLog(receipt)).toEqual([Upto.proxyAddress, settledTopic, '0x'])
    const after = await Promise.all([terms.owner, payee, relayer].map(held))
    expect(after.map((value, index) => value - (before[index] ?? 0n))).toEqual([
      -4_000n,
      4_000n,
      0n,
    ])

    for (const amount of [4_000n, 6_000n, 1n]) {
      expect(await failure(settle(terms, amount, signature))).toBe('InvalidNonce()')
    }
    expect(await outcomeOf(send(settle(terms, 6_000n, signature)))).toThrow('failed')
    expect(await held(payee)).toBe((before[1] ?? 0n) + 4_000n)
  })

  test('the proxy of upto moves the whole ceiling, and not one unit more', async () => {
    const terms = uptoOf({})
    const signature = await signUpto(terms, 1)
    expect(await failure(settle(terms, 10_001n, signature))).toBe('AmountExceedsPermitted()')
    expect(await outcomeOf(send(settle(terms, 10_001n, signature)))).toThrow('failed')
    const receipt = await send(settle(terms, 10_000n, signature))
    expect(transfersOf(receipt)).toEqual([[terms.owner, payee, 10_000n]])
  })

  test('error: amount 0 is refused and leaves the nonce unused', async () => {
    const terms = uptoOf({})
    const signature = await signUpto(terms, 1)
    const before = await usedNonces(terms)
    expect(await failure(settle(terms, 0n, signature))).toBe('InvalidAmount()')
    expect(await outcomeOf(send(settle(terms, 0n, signature)))).toThrow('failed')
    expect(await usedNonces(terms)).toBe(before)
    await send(settle(terms, 1n, signature))
    expect(await usedNonces(terms)).toBe(before | (1n << (terms.permit.nonce & 0xffn)))
  })

  test('error: only the facilitator that the payer signed can settle', async () => {
    const terms = uptoOf({})
    const signature = await signUpto(terms, 1)
    const data = settle(terms, 4_000n, signature)
    for (const sender of [stranger, payee, terms.owner]) {
      expect(await failure(data, sender)).toBe('UnauthorizedFacilitator()')
    }
    const own = { ...terms, witness: { ...terms.witness, facilitator: stranger } }
    expect(await failure(settle(own, 4_000n, signature), stranger)).toBe('InvalidSigner()')
    // In a batch of Multicall3 the sender is Multicall3, also if the facilitator sends the batch.
    const calls = [{ target: Upto.proxyAddress, allowFailure: true, callData: data }]
    const batch = encode(multicall3Abi, 'aggregate3', [calls])
    const [inner] = decodeFunctionResult({
      abi: multicall3Abi,
      functionName: 'aggregate3',
      data: await call(batch, relayer, multicall3Address),
    })
    expect(nameOf(inner?.returnData ?? '0x')).toBe('UnauthorizedFacilitator()')
    expect(transfersOf(await send(data))).toHaveLength(1)
  })

  test('error: payee, ceiling, nonce, deadline and validAfter are what the payer signed', async () => {
    const terms = uptoOf({})
    const { permit, witness } = terms
    const signature = await signUpto(terms, 1)
    const changed: readonly Partial<Terms>[] = [
      { witness: { ...witness, to: stranger } },
      { witness: { ...witness, validAfter: 1n } },
      { permit: { ...permit, permitted: { ...permit.permitted, amount: 10_001n } } },
      { permit: { ...permit, nonce: permit.nonce + 1n } },
      { permit: { ...permit, deadline: permit.deadline + 1n } },
      { owner: account(2).address },
    ]
    for (const over of changed) {
      expect(await failure(settle({ ...terms, ...over }, 1n, signature))).toBe('InvalidSigner()')
    }
    await call(settle(terms, 1n, signature))
  })

  test('the proxy of upto settles from the second of validAfter on', async () => {
    const settleAt = async (second: bigint, validAfter: bigint) => {
      const terms = uptoOf({ witness: { validAfter } })
      const data = settle(terms, 1n, await signUpto(terms, 1))
      await chain.rpc('evm_setNextBlockTimestamp', [numberToHex(second)])
      return send(data)
    }
    expect(await outcomeOf(settleAt(1_750_000_000n, 1_750_000_001n))).toThrow('failed')
    await settleAt(1_760_000_000n, 1_760_000_000n)
  })

  test('error: the faults of a call are found in their order', async () => {
    // Account 3 has not approved Permit2. It has withdrawn its nonce 5.
    const withdraw = encode(permit2Abi, 'invalidateUnorderedNonces', [0n, 1n << 5n])
    await send(withdraw, account(3).address, Permit.permit2Address)
    for (const hasPermit of [false, true]) {
      let attempt = {
        sender: stranger,
        signer: 4,
        amount: 10_001n,
        value: 10_001n,
        owner: zeroAddress as Address,
        nonce: 5n,
        deadline: 1n,
        to: zeroAddress as Address,
        validAfter: later,
      }
      const encodeNow = async () => {
        const { to, validAfter, value, ...over } = attempt
        const terms = uptoOf({ ...over, witness: { to, validAfter } })
        const signature = await signUpto(terms, attempt.signer)
        if (!hasPermit) return settle(terms, attempt.amount, signature)
        return settleWith(brokenPermit(value), terms, attempt.amount, signature)
      }
      const mends: readonly (readonly [string, Partial<typeof attempt>])[] = [
        ['AmountExceedsPermitted()', { amount: 0n }],
        ['UnauthorizedFacilitator()', { sender: relayer }],
        ...(hasPermit ? [['Permit2612AmountMismatch()', { value: 10_000n }] as const] : []),
        ['InvalidAmount()', { amount: 1n }],
        ['InvalidOwner()', { owner: account(3).address }],
        ['InvalidDestination()', { to: payee }],
        ['PaymentTooEarly()', { validAfter: 0n }],
        ['SignatureExpired(1)', { deadline: later }],
        ['InvalidNonce()', { nonce: 6n }],
        ['InvalidSigner()', { signer: 3 }],
      ]
      for (const [fault, mend] of mends) {
        expect(await failure(await encodeNow(), attempt.sender)).toBe(fault)
        attempt = { ...attempt, ...mend }
      }
      const data = await encodeNow()
      expect(await failure(data)).toBe('TRANSFER_FROM_FAILED')
      const id = await snapshot(chain)
      await approve(3)
      expect(transfersOf(await send(data))).toEqual([[attempt.owner, payee, 1n]])
      await revert(chain, id)
    }
  })

  test('error: Permit2 names the fault of a signature, also of a contract wallet', async () => {
    const wallet = await deploy(chain, Wallets.SmartWallet, [account(6).address])
    await send(encode(token, 'mint', [wallet, 50_000n]), relayer, base.asset.address)
    const terms = uptoOf({ owner: getAddress(wallet) })
    const allow = encode(token, 'approve', [Permit.permit2Address, later])
    const run = encode(Wallets.SmartWallet.abi, 'execute', [base.asset.address, 0n, allow])
    await send(run, account(6).address, wallet)
    const refused = settle(terms, 1n, await signUpto(terms, 5))
    expect(await failure(refused)).toBe('InvalidContractSignature()')
    const receipt = await send(settle(terms, 7n, await signUpto(terms, 6)))
    expect(transfersOf(receipt)).toEqual([[terms.owner, payee, 7n]])
    const unrecoverable = `${zeroHash}${zeroHash.slice(2)}1b` as const
    expect(await failure(settle(uptoOf({}), 1n, unrecoverable))).toBe('InvalidSignature()')
  })

  test('settleWithPermit pays for a payer without approval', async () => {
    const terms = uptoOf({ owner: account(3).address })
    const signature = await signUpto(terms, 3)
    expect(await failure(settle(terms, 4_000n, signature))).toBe('TRANSFER_FROM_FAILED')
    for (const value of [9_999n, 10_001n, 4_000n]) {
      const other = settleWith(await permit2612(3, value), terms, 4_000n, signature)
      expect(await failure(other)).toBe('Permit2612AmountMismatch()')
    }
    const data = settleWith(await permit2612(3, 10_000n), terms, 4_000n, signature)
    const receipt = await send(data)
    expect(transfersOf(receipt)).toEqual([[terms.owner, payee, 4_000n]])
    expect(lastLog(receipt)).toEqual([Upto.proxyAddress, withPermitTopic, '0x'])
    const left = encode(token, 'allowance', [terms.owner, Permit.permit2Address])
    expect(BigInt(await call(left, relayer, base.asset.address))).toBe(6_000n)
    expect(await failure(data)).toBe('InvalidNonce()')
  })

  test('a permit that fails reverts nothing, also if another account has used it', async () => {
    const terms = uptoOf({ owner: account(3).address })
    const signature = await signUpto(terms, 3)
    const permit = await permit2612(3, 10_000n)
    const { value, deadline, v, r, s } = permit
    const args = [terms.owner, Permit.permit2Address, value, deadline, v, r, s]
    await send(encode(token, 'permit', args), stranger, base.asset.address)
    const receipt = await send(settleWith(permit, terms, 4_000n, signature))
    expect(transfersOf(receipt)).toEqual([[terms.owner, payee, 4_000n]])
    expect(lastLog(receipt)).toEqual([Upto.proxyAddress, withPermitTopic, '0x'])

    const approved = uptoOf({})
    const payment = await signUpto(approved, 1)
    const data = settleWith(brokenPermit(10_000n), approved, 4_000n, payment)
    expect(transfersOf(await send(data))).toEqual([[approved.owner, payee, 4_000n]])
  })

  test('the known digest of a vector is what viem hashes, and it pays', async () => {
    const terms = uptoOf({
      ceiling: 5_000_000n,
      nonce: 1n,
      deadline: 1_800_000_000n,
      witness: { to: account(2).address },
    })
    const hash = '0x5e805204ffac9440df45bfe3325f6ed0f4154d137a7ff77e04ca15fb95eb9340'
    expect(digestOf(terms)).toBe(hash)
    const signature = await account(1).local().sign?.({ hash })
    const receipt = await send(settle(terms, 1_250_000n, signature ?? '0x'))
    expect(transfersOf(receipt)).toEqual([[terms.owner, account(2).address, 1_250_000n]])
  })

  test('error: a token that calls back is refused by the guard, before any other check', async () => {
    const terms = uptoOf({})
    const { permit } = terms
    const empty = uptoOf({ owner: zeroAddress, ceiling: 0n, witness: { to: zeroAddress } })
    const inner = [settle(empty, 1n, '0x'), settleWith(brokenPermit(1n), empty, 1n, '0x')]
    const hostile = account(5).address
    const own = { ...permit, permitted: { ...permit.permitted, token: hostile } }
    const outer = { ...terms, permit: own }
    const signature = await signUpto(outer, 1)
    for (const data of inner) {
      await chain.rpc('anvil_setCode', [hostile, reentrantToken(data)])
      const id = await snapshot(chain)
      expect(lastLog(await send(settle(outer, 1n, signature)))?.[1]).toBe(settledTopic)
      await revert(chain, id)
    }
    // The same call is answered by the first check when it is not nested.
    expect(await failure(inner[0] ?? '0x')).toBe('AmountExceedsPermitted()')
  })

  test('a payment that the client of @x402/evm signs is settled, with and without approval', async () => {
    for (const signer of [1, 3]) {
      const client = new UptoEvmScheme(account(signer).local(), { rpcUrl: chain.url })
      const requirements = {
        scheme: 'upto',
        network: `eip155:${base.chainId}`,
        amount: '50000',
        asset: base.asset.address,
        payTo: payee,
        maxTimeoutSeconds: 120,
        extra: { ...base.asset.eip712, facilitatorAddress: relayer },
      } as const
      const made = await client.createPaymentPayload(2, requirements, {
        extensions: { eip2612GasSponsoring: {} },
      })
      const payload = made.payload as Payload
      expect(payload.permit2Authorization.spender).toBe(Upto.proxyAddress)
      const sponsoring = made.extensions?.eip2612GasSponsoring as Sponsoring | undefined
      expect(sponsoring !== undefined).toBe(signer === 3)
      const terms = termsOf(payload)
      const data = sponsoring
        ? settleWith(permitOf(sponsoring), terms, 12_345n, payload.signature)
        : settle(terms, 12_345n, payload.signature)
      const receipt = await send(data)
      expect(transfersOf(receipt)).toEqual([[account(signer).address, payee, 12_345n]])
    }
  })
})
