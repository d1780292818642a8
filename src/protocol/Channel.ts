import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import { equal } from './Address'
import * as Crypto from './Crypto'
import * as Permit from './Permit'

/**
 * Payment channels, on the wire scheme `batch-settlement`: a payer deposits into a contract, and signs
 * with each request a voucher of all that it has bought. The payee claims by one of them.
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
  refundAtomic?: bigint | undefined
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

const eip712 = { name: 'x402 Batch Settlement', version: '1' }

function digestOf(chainId: number, words: string): Uint8Array {
  return Abi.typedDigest(Abi.domainSeparator(chainId, settlementAddress, eip712), words)
}

/** Strangers choose its keys, so it is emptied when it grows. */
const ids = new Map<string, Hex>()
const idsMax = 16_384

/** The seven words of a config. */
function wordsOf({ withdrawDelay, salt, ...config }: Config): string {
  const { payer, payerAuthorizer, receiver, receiverAuthorizer, token } = config
  const addresses = Abi.encode(payer, payerAuthorizer, receiver, receiverAuthorizer, token)
  return addresses + Abi.encode(withdrawDelay, salt)
}

/** Id of a channel: the EIP-712 hash of its config, lower case. */
export function idOf(config: Config, chainId: number): Hex {
  const words = wordsOf(config)
  const key = `${chainId}/${words}`
  const known = ids.get(key)
  if (known !== undefined) return known
  const id = Crypto.hex(digestOf(chainId, configType + words))
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
  return digestOf(chainId, voucherType + channelId.slice(2) + Abi.uint(maxAtomic))
}

/** EIP-712 digest of a refund, which the receiver's authorizer signs. */
export function refundDigest(
  chainId: number,
  channelId: Hex,
  nonce: bigint,
  amountAtomic: bigint,
): Uint8Array {
  const words = refundType + channelId.slice(2) + Abi.uint(nonce) + Abi.uint(amountAtomic)
  return digestOf(chainId, words)
}

/** EIP-712 digest of a claim of these rows in their order, which the receiver's authorizer signs. */
export function claimDigest(chainId: number, rows: readonly ClaimRow[]): Uint8Array {
  const entries = rows.map(({ config, maxAtomic, chargedAtomic }) => {
    const id = idOf(config, chainId).slice(2)
    return Abi.hash(entryTypeHash + id + Abi.uint(maxAtomic) + Abi.uint(chargedAtomic))
  })
  return digestOf(chainId, batchType + Abi.hash(entries.join('')))
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

/** A function of the contract. */
function callOf<Args extends readonly (Config | Abi.Argument)[]>(signature: string) {
  const call = Abi.method<readonly Abi.Argument[]>(signature)
  return (...args: Args): Call => {
    const words = args.map((each) => {
      return typeof each === 'object' && 'salt' in each ? hexOf(each) : each
    })
    return call(settlementAddress, ...words)
  }
}

function hexOf(config: Config): Hex {
  return `0x${wordsOf(config)}`
}

type Funding = [config: Config, amountAtomic: bigint, collector: Address, data: Abi.Dynamic]
const deposit = callOf<Funding>(`deposit(${tuple},uint128,address,bytes)`)

/** Pays a deposit into its channel. Every account may send it. */
export function depositCall(config: Config, { amountAtomic, by }: Deposit): Call {
  const signature = Abi.bytes(by.signature)
  if (by.method === 'eip3009') {
    const data = Abi.encode(by.validAfter, by.validBefore, by.salt, signature)
    return deposit(config, amountAtomic, eip3009CollectorAddress, Abi.bytes(`0x${data}`))
  }
  const { nonce, deadline, permit2612 } = by
  const permit = permit2612 ? wordsOf2612(amountAtomic, permit2612) : ''
  const data = Abi.encode(nonce, deadline, signature, Abi.bytes(`0x${permit}`))
  return deposit(config, amountAtomic, permit2CollectorAddress, Abi.bytes(`0x${data}`))
}

function wordsOf2612(amountAtomic: bigint, permit: NonNullable<Permit.Signed['permit2612']>) {
  const signature = Permit.vrs(Crypto.withCanonicalV(permit.signature))
  return Abi.encode(amountAtomic, permit.deadline, `0x${signature}`)
}

type Claiming = [rows: Abi.Dynamic, authorizerSignature: Abi.Dynamic]
const claim = callOf<Claiming>(`claimWithSignature(((${tuple},uint128),bytes,uint128)[],bytes)`)

/** Claims by vouchers of one authorizer, which signed `claimDigest` of these rows. */
export function claimCall(rows: readonly ClaimRow[], authorizerSignature: Hex): Call {
  const tuples = rows.map(({ config, maxAtomic, signature, chargedAtomic }) =>
    Abi.encode(hexOf(config), maxAtomic, Abi.bytes(signature), chargedAtomic),
  )
  return claim(Abi.list(tuples), Abi.bytes(authorizerSignature))
}

/** Moves what was claimed for a receiver to it. Every account may send it. */
export const settleCall = callOf<[receiver: Address, token: Address]>('settle(address,address)')

/** The same as `refundCall` without a signature, by the receiver or its authorizer alone. */
export const ownRefundCall = callOf<[config: Config, amountAtomic: bigint]>(
  `refund(${tuple},uint128)`,
)

type Refunding = [config: Config, amountAtomic: bigint, nonce: bigint, signature: Abi.Dynamic]
const refund = callOf<Refunding>(`refundWithSignature(${tuple},uint128,uint256,bytes)`)

/** Refunds to the payer what is not claimed, at most the amount. */
export function refundCall(
  config: Config,
  amountAtomic: bigint,
  nonce: bigint,
  authorizerSignature: Hex,
): Call {
  return refund(config, amountAtomic, nonce, Abi.bytes(authorizerSignature))
}

const together = callOf<[calls: Abi.Dynamic]>('multicall(bytes[])')

/** Calls of the contract in one transaction; all of them fail together. */
export function multicall(calls: readonly Pick<Call, 'data'>[]): Call {
  return together(Abi.list(calls.map(({ data }) => Abi.dynamicBytes(data))))
}

/** Starts a withdrawal of the payer, which it or its authorizer sends. */
export const initiateWithdrawCall = callOf<[config: Config, amountAtomic: bigint]>(
  `initiateWithdraw(${tuple},uint128)`,
)

/** Ends a withdrawal after the delay. */
export const finalizeWithdrawCall = callOf<[config: Config]>(`finalizeWithdraw(${tuple})`)

/** Reads balance and claimed of a channel: `parsePair`. */
export const channelsCall = callOf<[id: Hex]>('channels(bytes32)')

/** Reads the amount and the start of a withdrawal, unix seconds or 0: `parsePair`. */
export const pendingWithdrawalCall = callOf<[id: Hex]>('pendingWithdrawals(bytes32)')

/** Reads the nonce of the next refund: `Abi.uintAt`. */
export const refundNonceCall = callOf<[id: Hex]>('refundNonce(bytes32)')

/** Reads what was claimed for a receiver and what it got: `parsePair`. */
export const receiversCall = callOf<[receiver: Address, token: Address]>(
  'receivers(address,address)',
)

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

/** The two integers of an answer; undefined for other bytes, such as those of an account without code. */
export function parsePair(data: Hex): readonly [bigint, bigint] | undefined {
  if (data.length !== 2 + 128) return undefined
  const first = Abi.uintAt(data.slice(2), 0)
  const second = Abi.uintAt(data.slice(2), 1)
  return first === undefined || second === undefined ? undefined : [first, second]
}

/**
 * An event of the contract. `subject`: its channel, or the word of the receiver that was paid.
 * `amountAtomic` is that of the event, not the new total.
 */
export type Event = { name: keyof typeof topics; subject: Hex; amountAtomic: bigint }

/** Topics of the events by name. */
export const topics = {
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
  const [topic, subject] = log.topics
  const name = names.find((each) => topics[each] === topic)
  const amountAtomic = Abi.uintAt(log.data.slice(2))
  if (!name || !subject || amountAtomic === undefined) return undefined
  return { name, subject, amountAtomic }
}

/** The amount of an event of the contract in the logs of a receipt; undefined without one. */
export function amountIn(
  logs: readonly { address: Address; topics: readonly Hex[]; data: Hex }[],
  name: Event['name'],
  subject: Hex,
): bigint | undefined {
  const own = logs.filter(({ address }) => equal(address, settlementAddress))
  const events = own.map(parseEvent)
  return events.find((event) => event?.name === name && event.subject === subject)?.amountAtomic
}

function topicOf(signature: string): Hex {
  return `0x${Abi.hashOf(signature)}`
}
