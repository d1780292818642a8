import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import { equal } from './Address'
import * as Crypto from './Crypto'
import * as Permit from './Permit'

/**
 * Payment channels, on the wire scheme `batch-settlement`: a payer deposits into a contract, and signs
 * with each request a voucher of all that it has bought. The payee claims by the newest voucher.
 * x402 specs/schemes/batch-settlement/scheme_batch_settlement_evm.md.
 */

/** The name on the wire. */
export const scheme = 'batch-settlement'

/** Canonical x402BatchSettlement, the same on every chain. */
export const settlementAddress: Address = '0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003'

/** Canonical ERC3009DepositCollector: the payee of a deposit by EIP-3009. */
export const eip3009CollectorAddress: Address = '0x4020806089470a89826cB9fB1f4059150b550004'

/** Canonical Permit2DepositCollector: the spender of a deposit by Permit2. */
export const permit2CollectorAddress: Address = '0x4020425FAf3B746C082C2f942b4E5159887B0005'

/** Bounds of the contract for a delay of withdrawals, in seconds. */
export const withdrawDelayMin = 900
export const withdrawDelayMax = 2_592_000

/** Largest amount of the contract. */
export const amountMax = 2n ** 128n - 1n

/** What a channel is, by which it has its id. Addresses are EIP-55 checksummed. */
export type Config = {
  payer: Address
  /** Signs the vouchers. */
  payerAuthorizer: Address
  receiver: Address
  /** Signs claims and refunds. */
  receiverAuthorizer: Address
  token: Address
  /** Seconds. */
  withdrawDelay: number
  /** 32 bytes, lower-case hex. */
  salt: Hex
}

/** A signed deposit. Times are unix seconds; `salt` and `nonce` are 32 bytes, lower-case hex. */
export type Deposit = {
  amountAtomic: bigint
  by:
    | { method: 'eip3009'; validAfter: bigint; validBefore: bigint; salt: Hex; signature: Hex }
    | {
        method: 'permit2'
        nonce: Hex
        deadline: bigint
        signature: Hex
        permit2612?: NonNullable<Permit.Signed['permit2612']>
      }
}

/** What a credential presents of a channel. Its signature is that of the transfer. */
export type Voucher = {
  /** Lower case. */
  channelId: Hex
  config: Config
  maxAtomic: bigint
  kind: 'voucher' | 'deposit' | 'refund'
  deposit?: Deposit
  /** What a refund asks for; all by default. */
  refundAtomic?: bigint
}

/** What the contract has of a channel. */
export type OnChain = {
  balanceAtomic: bigint
  claimedAtomic: bigint
  /** When the payer has begun a withdrawal, unix ms. */
  withdrawAt: number | undefined
  refundNonce: bigint
}

/** A voucher in a claim: `chargedAtomic` of it is claimed, at most `maxAtomic`. */
export type ClaimRow = { config: Config; maxAtomic: bigint; signature: Hex; chargedAtomic: bigint }

export type Call = { to: Address; data: Hex }

const tuple = '(address,address,address,address,address,uint40,bytes32)'
const rowsTuple = `((${tuple},uint128),bytes,uint128)[]`

const configType = Abi.hashOf(
  'ChannelConfig(address payer,address payerAuthorizer,address receiver,' +
    'address receiverAuthorizer,address token,uint40 withdrawDelay,bytes32 salt)',
)
const voucherType = Abi.hashOf('Voucher(bytes32 channelId,uint128 maxClaimableAmount)')
const refundType = Abi.hashOf('Refund(bytes32 channelId,uint256 nonce,uint128 amount)')
const entryType = 'ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)'
const entryTypeHash = Abi.hashOf(entryType)
const batchType = Abi.hashOf(`ClaimBatch(ClaimEntry[] claims)${entryType}`)
const witnessType = 'DepositWitness(bytes32 channelId)'
const witnessTypeHash = Abi.hashOf(witnessType)
const depositType = Abi.hashOf(
  'PermitWitnessTransferFrom(TokenPermissions permitted,address spender,uint256 nonce,' +
    `uint256 deadline,DepositWitness witness)${witnessType}` +
    'TokenPermissions(address token,uint256 amount)',
)

const domainWords =
  Abi.hashOf('EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)') +
  Abi.hashOf('x402 Batch Settlement') +
  Abi.hashOf('1')

/** Strangers choose the keys of both, so they are emptied when they grow. */
const domains = new Map<number, string>()
const ids = new Map<string, Hex>()
const domainsMax = 1024
const idsMax = 16_384

function domainOf(chainId: number): string {
  const known = domains.get(chainId)
  if (known !== undefined) return known
  const domain = Abi.hash(domainWords + Abi.uint(chainId) + Abi.address(settlementAddress))
  if (domains.size >= domainsMax) domains.clear()
  domains.set(chainId, domain)
  return domain
}

/** The seven words of a config. */
function wordsOf(config: Config): string {
  return (
    Abi.address(config.payer) +
    Abi.address(config.payerAuthorizer) +
    Abi.address(config.receiver) +
    Abi.address(config.receiverAuthorizer) +
    Abi.address(config.token) +
    Abi.uint(config.withdrawDelay) +
    config.salt.slice(2)
  )
}

/** Id of a channel: the EIP-712 hash of its config, lower case. */
export function idOf(config: Config, chainId: number): Hex {
  const words = wordsOf(config)
  const key = `${chainId}/${words}`
  const known = ids.get(key)
  if (known !== undefined) return known
  const id = Crypto.hex(Abi.typedDigest(domainOf(chainId), configType + words))
  if (ids.size >= idsMax) ids.clear()
  ids.set(key, id)
  return id
}

/**
 * Nonce of the payment that a voucher pays: the money above what was charged before. No other charged
 * payment of the channel has that base, because what is charged only grows.
 */
export function nonceOf(channelId: Hex, baseAtomic: bigint): Hex {
  return `0x${channelId.slice(2, 34)}${baseAtomic.toString(16).padStart(32, '0')}`
}

/** EIP-712 digest of a voucher. */
export function voucherDigest(chainId: number, channelId: Hex, maxAtomic: bigint): Uint8Array {
  const words = voucherType + channelId.slice(2) + Abi.uint(maxAtomic)
  return Abi.typedDigest(domainOf(chainId), words)
}

/** EIP-712 digest of a refund, which the receiver's authorizer signs. */
export function refundDigest(
  chainId: number,
  channelId: Hex,
  nonce: bigint,
  amountAtomic: bigint,
): Uint8Array {
  const words = refundType + channelId.slice(2) + Abi.uint(nonce) + Abi.uint(amountAtomic)
  return Abi.typedDigest(domainOf(chainId), words)
}

/** EIP-712 digest of a claim of these rows in their order, which the receiver's authorizer signs. */
export function claimDigest(chainId: number, rows: readonly ClaimRow[]): Uint8Array {
  const entries = rows.map(({ config, maxAtomic, chargedAtomic }) => {
    const id = idOf(config, chainId).slice(2)
    return Abi.hash(entryTypeHash + id + Abi.uint(maxAtomic) + Abi.uint(chargedAtomic))
  })
  return Abi.typedDigest(domainOf(chainId), batchType + Abi.hash(entries.join('')))
}

/** EIP-712 digest that the payer signs for a deposit by Permit2. */
export function permitDigest(
  { config, chainId }: { config: Config; chainId: number },
  { amountAtomic, by }: { amountAtomic: bigint; by: { nonce: Hex; deadline: bigint } },
): Uint8Array {
  return Permit.digestOf({
    chainId,
    asset: config.token,
    amountAtomic,
    nonce: by.nonce,
    validBefore: by.deadline,
    spender: permit2CollectorAddress,
    typeHash: depositType,
    witness: Abi.hash(witnessTypeHash + idOf(config, chainId).slice(2)),
  })
}

/** EIP-3009 nonce of a deposit, which binds it to the channel. */
export function depositNonce(channelId: Hex, salt: Hex): Hex {
  return `0x${Abi.hash(channelId.slice(2) + salt.slice(2))}`
}

/**
 * What the payer signs for a deposit by EIP-3009, for `Transfer.receiveDigest`: the collector takes
 * the money.
 */
export function authorizationOf(
  { config, chainId }: { config: Config; chainId: number },
  { amountAtomic, by }: Deposit & { by: { method: 'eip3009' } },
): Omit<Permit.Signed, 'signature'> {
  const { validAfter, validBefore, salt } = by
  return {
    chainId,
    asset: config.token,
    payer: config.payer,
    payee: eip3009CollectorAddress,
    amountAtomic,
    nonce: depositNonce(idOf(config, chainId), salt),
    validAfter,
    validBefore,
  }
}

const selectors = {
  deposit: Abi.selector(`deposit(${tuple},uint128,address,bytes)`),
  claim: Abi.selector(`claimWithSignature(${rowsTuple},bytes)`),
  settle: Abi.selector('settle(address,address)'),
  refund: Abi.selector(`refundWithSignature(${tuple},uint128,uint256,bytes)`),
  multicall: Abi.selector('multicall(bytes[])'),
  initiate: Abi.selector(`initiateWithdraw(${tuple},uint128)`),
  finalize: Abi.selector(`finalizeWithdraw(${tuple})`),
  channels: Abi.selector('channels(bytes32)'),
  withdrawals: Abi.selector('pendingWithdrawals(bytes32)'),
  refundNonce: Abi.selector('refundNonce(bytes32)'),
  receivers: Abi.selector('receivers(address,address)'),
}

function callOf(name: keyof typeof selectors, words: string): Call {
  return { to: settlementAddress, data: `0x${selectors[name]}${words}` }
}

/** Pays a deposit into its channel. Every account may send it. */
export function depositCall(config: Config, { amountAtomic, by }: Deposit): Call {
  const collector = by.method === 'eip3009' ? eip3009CollectorAddress : permit2CollectorAddress
  const data = by.method === 'eip3009' ? authorizationData(by) : permitData(amountAtomic, by)
  const words = wordsOf(config) + Abi.uint(amountAtomic) + Abi.address(collector)
  return callOf('deposit', words + Abi.uint(10 * 32) + Abi.dynamicBytes(data))
}

type Of<M> = Extract<Deposit['by'], { method: M }>

function authorizationData({ validAfter, validBefore, salt, signature }: Of<'eip3009'>): Hex {
  const words = Abi.uint(validAfter) + Abi.uint(validBefore) + salt.slice(2)
  return `0x${words}${Abi.uint(4 * 32)}${Abi.dynamicBytes(signature)}`
}

function permitData(amountAtomic: bigint, by: Of<'permit2'>): Hex {
  const { nonce, deadline, permit2612 } = by
  const signature = Abi.dynamicBytes(by.signature)
  const permit = Abi.dynamicBytes(`0x${permit2612 ? wordsOf2612(amountAtomic, permit2612) : ''}`)
  const heads = Abi.uint(4 * 32) + Abi.uint(4 * 32 + signature.length / 2)
  return `0x${nonce.slice(2)}${Abi.uint(deadline)}${heads}${signature}${permit}`
}

function wordsOf2612(amountAtomic: bigint, permit: NonNullable<Of<'permit2'>['permit2612']>) {
  const words = Abi.uint(amountAtomic) + Abi.uint(permit.deadline)
  return words + Permit.vrs(Crypto.withCanonicalV(permit.signature))
}

/** Claims by vouchers of one authorizer, which signed `claimDigest` of these rows. */
export function claimCall(rows: readonly ClaimRow[], authorizerSignature: Hex): Call {
  const tuples = rows.map(
    ({ config, maxAtomic, signature, chargedAtomic }) =>
      wordsOf(config) +
      Abi.uint(maxAtomic) +
      Abi.uint(10 * 32) +
      Abi.uint(chargedAtomic) +
      Abi.dynamicBytes(signature),
  )
  const list = arrayOf(tuples)
  const heads = Abi.uint(2 * 32) + Abi.uint(2 * 32 + list.length / 2)
  return callOf('claim', heads + list + Abi.dynamicBytes(authorizerSignature))
}

/** Moves what was claimed for a receiver to it. Every account may send it. */
export function settleCall(receiver: Address, token: Address): Call {
  return callOf('settle', Abi.address(receiver) + Abi.address(token))
}

/** Refunds to the payer what is not claimed, at most the amount. */
export function refundCall(
  config: Config,
  amountAtomic: bigint,
  nonce: bigint,
  authorizerSignature: Hex,
): Call {
  const words = wordsOf(config) + Abi.uint(amountAtomic) + Abi.uint(nonce) + Abi.uint(10 * 32)
  return callOf('refund', words + Abi.dynamicBytes(authorizerSignature))
}

/** Calls of the contract in one transaction; all of them fail together. */
export function multicall(calls: readonly Pick<Call, 'data'>[]): Call {
  const list = arrayOf(calls.map(({ data }) => Abi.dynamicBytes(data)))
  return callOf('multicall', Abi.uint(32) + list)
}

/** An array of dynamic tuples or bytes: its length, the offsets, and the entries. */
function arrayOf(entries: readonly string[]): string {
  let offset = entries.length * 32
  let offsets = ''
  for (const entry of entries) {
    offsets += Abi.uint(offset)
    offset += entry.length / 2
  }
  return Abi.uint(entries.length) + offsets + entries.join('')
}

/** Starts a withdrawal of the payer, which it or its authorizer sends. */
export function initiateWithdrawCall(config: Config, amountAtomic: bigint): Call {
  return callOf('initiate', wordsOf(config) + Abi.uint(amountAtomic))
}

/** Ends a withdrawal after the delay. */
export function finalizeWithdrawCall(config: Config): Call {
  return callOf('finalize', wordsOf(config))
}

/** Reads balance and claimed of a channel: `parsePair`. */
export function channelsCall(id: Hex): Call {
  return callOf('channels', id.slice(2))
}

/** Reads the amount and the start of a withdrawal, unix seconds or 0: `parsePair`. */
export function pendingWithdrawalCall(id: Hex): Call {
  return callOf('withdrawals', id.slice(2))
}

/** Reads the nonce of the next refund: `Abi.uintAt`. */
export function refundNonceCall(id: Hex): Call {
  return callOf('refundNonce', id.slice(2))
}

/** Reads all that the contract has of a channel: `parseState`. */
export function stateCalls(id: Hex): readonly Call[] {
  return [channelsCall(id), pendingWithdrawalCall(id), refundNonceCall(id)]
}

/** The answers to `stateCalls`; undefined for other bytes, or where a call failed. */
export function parseState(results: readonly (Hex | undefined)[]): OnChain | undefined {
  const [funds, withdrawal] = results.map((result) => result && parsePair(result))
  const refundNonce = Abi.uintAt(results[2]?.slice(2) ?? '')
  if (!funds || !withdrawal || refundNonce === undefined) return undefined
  const [balanceAtomic, claimedAtomic] = funds
  const withdrawAt = withdrawal[1] === 0n ? undefined : Number(withdrawal[1]) * 1000
  return { balanceAtomic, claimedAtomic, withdrawAt, refundNonce }
}

/** `channelState` without what was charged: integers as text, times in unix seconds. */
export function stateJson(channelId: Hex, { withdrawAt = 0, ...state }: OnChain) {
  return {
    channelId,
    balance: String(state.balanceAtomic),
    totalClaimed: String(state.claimedAtomic),
    withdrawRequestedAt: Math.floor(withdrawAt / 1000),
    refundNonce: String(state.refundNonce),
  }
}

/** Reads what was claimed for a receiver and what it got: `parsePair`. */
export function receiversCall(receiver: Address, token: Address): Call {
  return callOf('receivers', Abi.address(receiver) + Abi.address(token))
}

/** The two integers of an answer; undefined for other bytes, such as those of an account without code. */
export function parsePair(data: Hex): readonly [bigint, bigint] | undefined {
  if (data.length !== 2 + 128) return undefined
  const first = Abi.uintAt(data.slice(2), 0)
  const second = Abi.uintAt(data.slice(2), 1)
  return first === undefined || second === undefined ? undefined : [first, second]
}

/** An event of the contract. `amountAtomic` is that of the event, not the new total. */
export type Event =
  | {
      name: 'deposited' | 'claimed' | 'refunded' | 'withdrawInitiated' | 'withdrawFinalized'
      channelId: Hex
      amountAtomic: bigint
    }
  | { name: 'settled'; receiver: Address; token: Address; amountAtomic: bigint }

/** Topics of the events by name. */
export const topics: Readonly<Record<Event['name'], Hex>> = {
  deposited: topicOf('Deposited(bytes32,address,uint128,uint128)'),
  claimed: topicOf('Claimed(bytes32,address,uint128,uint128)'),
  refunded: topicOf('Refunded(bytes32,address,uint128)'),
  withdrawInitiated: topicOf('WithdrawInitiated(bytes32,uint128,uint40)'),
  withdrawFinalized: topicOf('WithdrawFinalized(bytes32,address,uint128)'),
  settled: topicOf('Settled(address,address,address,uint128)'),
}

const names = Object.keys(topics) as Event['name'][]

/** The event of a log of the contract; undefined for other logs. Topics in lower case. */
export function parseEvent(log: { topics: readonly Hex[]; data: Hex }): Event | undefined {
  const [topic, first = '0x', second = '0x'] = log.topics
  const name = names.find((each) => topics[each] === topic)
  const amountAtomic = Abi.uintAt(log.data.slice(2))
  if (name === undefined || amountAtomic === undefined) return undefined
  if (name !== 'settled') return { name, channelId: first, amountAtomic }
  const receiver = Abi.addressAt(first.slice(2))
  const token = Abi.addressAt(second.slice(2))
  return receiver && token && { name, receiver, token, amountAtomic }
}

/**
 * The amount of an event of the contract in the logs of a receipt. `subject`: its channel, or the receiver
 * of a settlement. Undefined without one.
 */
export function amountIn(
  logs: readonly { address: Address; topics: readonly Hex[]; data: Hex }[],
  name: Event['name'],
  subject: Hex,
): bigint | undefined {
  for (const log of logs) {
    const event = equal(log.address, settlementAddress) ? parseEvent(log) : undefined
    if (event?.name !== name) continue
    if (subject === (event.name === 'settled' ? event.receiver : event.channelId))
      return event.amountAtomic
  }
  return undefined
}

function topicOf(signature: string): Hex {
  return `0x${Abi.hashOf(signature)}`
}
