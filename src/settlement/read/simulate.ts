import type { Address, Hex } from 'viem'
import { type Node, RpcError, RpcFault } from '../../chain/client'
import { chainNow } from '../../chain/clock'
import { type Fees, fees, observeBlock, observeTime } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import { type AccountCode, isContract, isIdentified } from '../../chain/multicall'
import * as Permit2 from '../../chain/permit2'
import { isHex, parseBlock } from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Abi from '../../protocol/Abi'
import { zero } from '../../protocol/Address'
import type { Asset } from '../../protocol/Asset'
import * as Crypto from '../../protocol/Crypto'
import * as Permit from '../../protocol/Permit'
import * as Transfer from '../../protocol/Transfer'
import * as Gas from '../state/gas-budget'
import {
  type ChainState,
  type Context,
  chainOf,
  isForged,
  type QueuedPayment,
  type Requested,
} from '../state/state'
import * as Refusals from './refusals'

/*
 * Whether transfers are signed (`checkSignature`), and would succeed now: `simulate` for the payments of a
 * batch, `verify` for one transfer of which nothing is written or sent.
 */

export type Simulation =
  /**
   * The transfer would succeed now. `balanceAtomic` is the payer's before it. `allowanceAtomic`: what
   * Permit2 may move, where that was read. `code`: the payer's code, where that was read. `fees`: those
   * that the simulation used.
   */
  | {
      kind: 'passes'
      balanceAtomic: bigint
      allowanceAtomic?: bigint | undefined
      code: AccountCode
      fees?: Fees
    }
  /** The chain shows this nonce as used or cancelled. */
  | { kind: 'used' }
  | Refusals.PaymentRefusal

/** What is simulated: a signed transfer and its settling call. */
type Candidate = Pick<QueuedPayment, 'transfer' | 'code' | 'signer' | 'call'> & {
  request?: Pick<Requested, 'verified'>
}

/**
 * Time for which the reads of a ceiling replace those of its charge, ms. The charge itself is
 * simulated.
 */
const verifiedMs = 2_000

const readsGas = 60_000n

/**
 * Simulates the exact calldata of all candidates in one eth_call, in their order and in the state
 * of one block. So what one payer spends first reduces the balance of later members. `now` is unix
 * ms. Runs inside Multicall3 because some tokens accept a used nonce without a revert and without a
 * transfer. Only the read of the nonce detects that.
 */
export async function simulate(
  chain: ChainState,
  from: Address | undefined,
  candidates: readonly Candidate[],
  now: number,
): Promise<Simulation[]> {
  const alone = (candidate: Candidate) => examine(chain, candidate, { from, now })
  const [first] = candidates
  if (first && candidates.length === 1) return [await alone(first)]
  const transfers = candidates.map(({ transfer }) => transfer)
  const calls = [Multicall.baseFeeCall]
  let gas = 200_000n
  for (const { transfer, call } of candidates) {
    calls.push(Token.nonceCall(transfer), Token.balanceOf(transfer.asset, transfer.payer), call)
    gas += Gas.limitOfMember(chain, transfer) + readsGas
  }
  let results: Multicall.Result[] | undefined
  try {
    const atSeconds = timeFor(chain, transfers, now)
    results = await callInOneBlock(chain, from, calls, { gas, atSeconds })
  } catch (error) {
    if (!(error instanceof RpcError)) return candidates.map(() => Refusals.unavailable(error))
    // One of them uses the gas of the others, or the relayer cannot pay for all of them.
    return inSequence(candidates, await Promise.all(candidates.map(alone)))
  }
  if (!results) return candidates.map(() => Refusals.unavailable(undefined))
  const baseFeeWei = uintOf(results[0])
  // The transaction that follows uses the price of this block.
  if (baseFeeWei) chain.head.baseFeeWei = baseFeeWei
  return Promise.all(
    candidates.map((each, index) => {
      const own = results.slice(1 + index * 3)
      return judgeMember(chain, each, own, () => alone(each))
    }),
  )
}

/** Each was simulated with the whole balance of its payer, so subtract what earlier ones spend. */
function inSequence(
  candidates: readonly Candidate[],
  simulations: readonly Simulation[],
): Simulation[] {
  const spent = new Map<string, bigint>()
  return simulations.map((simulation, index) => {
    const candidate = candidates[index]
    if (simulation.kind !== 'passes' || !candidate) return simulation
    const { payer, amountAtomic } = candidate.transfer
    const before = spent.get(payer) ?? 0n
    spent.set(payer, before + amountAtomic)
    return passesWith(simulation.balanceAtomic - before)
  })
}

/** Simulates a failed member alone to find the reason. */
async function judgeMember(
  { network }: Pick<ChainState, 'network'>,
  { transfer, signer }: Candidate,
  [nonce, balance, settled]: readonly Multicall.Result[],
  ask: () => Promise<Simulation>,
): Promise<Simulation> {
  const used = Token.isNonceUsed(transfer, uintOf(nonce))
  if (used) return { kind: 'used' }
  if (settled?.success === true && used === false) return passesWith(uintOf(balance) ?? 0n)
  if (isForged(signer)) return Refusals.refuseSignature(transfer, network.asset.eip712)
  const alone = await ask()
  return alone.kind === 'passes' ? Refusals.underWay : alone
}

/** A joint simulation does not read the code of a payer. */
function passesWith(balanceAtomic: bigint): Simulation {
  return { kind: 'passes', balanceAtomic, code: 'unknown' }
}

/** What would happen to a transfer now, and the transfer as it would be settled. */
export type CheckedTransfer =
  | { transfer: Transfer.Transfer; simulation: Extract<Simulation, { kind: 'passes' }> }
  | Refusals.PaymentRefusal

/**
 * Checks signature, window and simulation in one call to a node; nothing is written or sent.
 * `given`: the signing domain that the payer got, by default the token's own.
 */
export async function verify(
  context: Context,
  transfer: Transfer.Transfer,
  given: Asset['eip712'] | undefined,
): Promise<{ ok: true } | Refusals.PaymentRefusal> {
  const checked = await checkTransfer(context, transfer, given)
  return 'kind' in checked ? checked : { ok: true }
}

/** Like `verify`, and also resolves with what the simulation showed. */
export async function checkTransfer(
  context: Context,
  transfer: Transfer.Transfer,
  given?: Asset['eip712'],
): Promise<CheckedTransfer> {
  const chain = chainOf(context, transfer.network)
  const own = chain.network.asset.eip712
  const eip712 = given ?? own
  const digest = () => Transfer.digest(transfer, { eip712 })
  let signer: Address | undefined
  const isSigned = () => {
    signer ??= Crypto.recover(digest(), transfer.signature) ?? zero
    return signer === transfer.payer
  }
  const fault = Transfer.checkWindow(transfer, context.now())
  const late = fault && Refusals.refuse(fault.code, fault.detail)
  // Report a bad signature first: only the chain can decide it when no key of the payer signed.
  if (late && isSigned()) return late
  const isOtherDomain =
    transfer.method === 'eip3009' && (eip712.name !== own.name || eip712.version !== own.version)
  const isDecidedByChain = !isOtherDomain && Crypto.isCanonical(transfer.signature)
  const isKeys = isDecidedByChain || isSigned()
  const signed = isKeys ? assumeSigned(transfer) : await openWrapper(chain, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const sent = signed.transfer
  const isWrapped = !isKeys && sent !== transfer
  const candidate: Candidate = {
    transfer: sent,
    code: isKeys ? 'unknown' : 'contract',
    signer: { kind: 'unchecked', isKey: isSigned },
    call: callOf(sent),
  }
  const simulation = await examine(chain, candidate, {
    from: transfer.upto?.facilitator ?? chain.relayers[0]?.address,
    now: chainNow(context, chain),
    check: { isDecidedByChain, asksWallet: !isDecidedByChain, isSigned, isWrapped, digest, eip712 },
  })
  if (simulation.kind === 'refused' && Refusals.isUnsigned(simulation)) return simulation
  if (late) return late
  if (simulation.kind === 'passes') return { transfer: sent, simulation }
  return simulation.kind === 'used' ? Refusals.refuseUsed(transfer) : simulation
}

/** A signature that is not verified yet. */
type SignatureCheck = {
  /** Whether the chain decides: if the transfer passes with the signature, the payer signed it. */
  isDecidedByChain: boolean
  /** Whether a contract of the payer is asked, too, where the call shows its code. */
  asksWallet: boolean
  /** Whether the payer's own key signed the digest. Called when the chain does not decide. */
  isSigned: () => boolean
  /** Whether the signature came with the call that would deploy the wallet (ERC-6492). */
  isWrapped: boolean
  /** The signed digest, in the domain below, which need not be the token's. */
  digest: () => Uint8Array
  eip712: Asset['eip712']
}

/** `from`: the account that would send. `now` is unix ms. */
type Asked = { from: Address | undefined; now: number; check?: SignatureCheck | undefined }

/**
 * Checks in one call whether the transfer would succeed now. Otherwise gives the first reason in the
 * order of the reference facilitator, in a second call where a contract of the payer may explain it.
 */
async function examine(chain: ChainState, candidate: Candidate, asked: Asked): Promise<Simulation> {
  const { transfer, code, request } = candidate
  const { from } = asked
  const verified = request?.verified
  const atSeconds = timeFor(chain, [transfer], asked.now)
  if (verified !== undefined && asked.now - verified.at < verifiedMs) {
    // When it fails, everything is read again to say why.
    const isSettled = await settles(chain, from, candidate, atSeconds).catch(() => false)
    if (isSettled) return { kind: 'passes', code: 'eoa', ...verified }
  }
  const calls = callsFor(chain, candidate, asked.check)
  const gas = 2n * Gas.limitAlone(transfer, isContract(code)) + 200_000n
  let answer: CallAnswer | undefined
  let isSettled: boolean | undefined
  try {
    // Starts the call that needs no further bytes first, so that the node has it while the reads
    // are encoded.
    const settling = isDirect(transfer) ? settles(chain, from, candidate, atSeconds) : undefined
    const reading = aggregateWithCode(chain, from, transfer.payer, { calls, gas, atSeconds })
    if (settling === undefined) answer = await reading
    else [answer, isSettled] = await Promise.all([reading, settling])
  } catch (error) {
    return unusable(transfer, error)
  }
  if (!answer) return Refusals.unavailable(undefined)
  const seen = readAnswer(transfer, answer, isSettled)
  if (seen.baseFeeWei) chain.head.baseFeeWei = seen.baseFeeWei
  if (atSeconds === undefined && seen.timestamp !== undefined) {
    observeTime(chain.head, seen.timestamp, asked.now)
  }
  // The node ignored the override, so send it none from now on.
  else if (seen.timestamp !== atSeconds) chain.abilities.hasOverrides = false
  const { check } = asked
  // Only a transfer that a contract of the payer does not let pass needs its answer to the signature.
  const isOpen = check && !isSettledBy(seen) && seen.wallet === undefined && seen.code !== 'eoa'
  if (isOpen) return examine(chain, candidate, { ...asked, check: { ...check, asksWallet: true } })
  const verdict = judge(chain, candidate, seen, check)
  if (verdict === 'passes') return confirm(chain, from, candidate, { ...seen, atSeconds })
  if (verdict !== 'fails') return verdict
  // Simulate again, because this answer showed how old the newest block is.
  const isLater = atSeconds === undefined && timeFor(chain, [transfer], asked.now) !== undefined
  if (isLater && chain.abilities.hasOverrides) return examine(chain, candidate, asked)
  return explain(chain, candidate, seen, asked)
}

/** Whether the settling call looks at its sender, so that no other contract may make it. */
function isDirect({ upto }: Transfer.Transfer): boolean {
  return upto !== undefined
}

/** Whether the settling call succeeds when its sender makes it. Throws RpcFault or RpcError. */
async function settles(
  chain: ChainState,
  from: Address | undefined,
  { transfer, code, call: { to, data } }: Candidate,
  atSeconds: bigint | undefined,
): Promise<boolean> {
  const gas = Gas.limitAlone(transfer, isContract(code))
  try {
    await ethCall(chain, { from, to, data, gas, atSeconds })
    return true
  } catch (error) {
    if (isSpentGas(error)) return false
    throw error
  }
}

/** The settling call, and the reads that explain its failure. */
function callsFor(
  { network, abilities }: ChainState,
  { transfer, code, call }: Candidate,
  check: SignatureCheck | undefined,
): Multicall.Call[] {
  const { asset, payer, method } = transfer
  const asksWallet = check ? check.asksWallet || !abilities.readsCode : isContract(code)
  const digest = asksWallet && (check?.digest() ?? Transfer.digest(transfer, network.asset))
  return [
    Token.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    ...(method === 'permit2'
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2Of(transfer)]
      : []),
    ...(isDirect(transfer) ? [] : [call]),
    ...(digest ? [Token.isValidSignature(payer, digest, unwrap(transfer).signature)] : []),
  ]
}

/** The answers to `callsFor`. */
type CallReads = Omit<Refusals.Facts, 'refusedByWallet' | 'eip712'> & {
  code: AccountCode
  baseFeeWei: bigint | undefined
  isSettled: boolean
  /** The answer of a contract of the payer to the signature; undefined where none was called. */
  wallet: ReturnType<typeof judgeWallet> | undefined
}

function readAnswer(
  transfer: Transfer.Transfer,
  { code, timestamp, baseFeeWei, results }: CallAnswer,
  isSettled: boolean | undefined,
): CallReads {
  const isPermit = transfer.method === 'permit2'
  const settlingAt = isPermit ? 4 : 2
  const [nonce, balance, allowance, proxy] = results.map(uintOf)
  const wallet = results[settlingAt + (isDirect(transfer) ? 0 : 1)]
  return {
    code,
    baseFeeWei,
    isSettled: isSettled ?? results[settlingAt]?.success === true,
    wallet: wallet && judgeWallet(wallet),
    used: Token.isNonceUsed(transfer, nonce),
    balance,
    timestamp,
    allowance: isPermit ? allowance : undefined,
    // A call to an address without code succeeds and moves nothing.
    hasProxy: !isPermit || proxy !== undefined,
  }
}

/** Whether the call moved the money. */
function isSettledBy({ isSettled, hasProxy, used }: CallReads): boolean {
  return isSettled && hasProxy && used === false
}

function judge(
  { network }: ChainState,
  { transfer, code }: Candidate,
  seen: CallReads,
  check: SignatureCheck | undefined,
): Exclude<Simulation, { kind: 'passes' }> | 'passes' | 'fails' {
  const { used, wallet } = seen
  const passes = isSettledBy(seen)
  const eip712 = check?.eip712 ?? network.asset.eip712
  if (passes && check?.isDecidedByChain) return 'passes'
  if (check && wallet !== 'accepts' && !check.isSigned()) {
    const isUndeployed = wallet === 'absent' && check.isWrapped
    return isUndeployed
      ? Refusals.refuseFactory(transfer)
      : Refusals.refuseSignature(transfer, eip712)
  }
  // Report a bad signature before a used nonce, so that forgers cannot probe nonces.
  if (used) {
    const isRefused = isContract(code) && wallet === 'refuses'
    return isRefused ? Refusals.refuseSignature(transfer, eip712) : { kind: 'used' }
  }
  return passes ? 'passes' : 'fails'
}

function explain(
  chain: ChainState,
  { transfer, code, signer }: Candidate,
  seen: CallReads,
  { now, check }: Asked,
): Simulation {
  const { wallet } = seen
  const facts = {
    ...seen,
    refusedByWallet: wallet === 'refuses' || (wallet === 'absent' && isContract(code)),
    eip712: check?.eip712,
  }
  if (!Refusals.isEarly(chain, transfer, facts, now)) {
    return Refusals.explain(chain.network, transfer, facts)
  }
  const isSigned = seen.code === 'eoa' && !isForged(signer) && !isContract(code)
  if (!isSigned) return Refusals.tooEarly
  return { kind: 'passes', balanceAtomic: seen.balance ?? 0n, code: seen.code }
}

/**
 * Simulates again with exactly the transaction that would follow, up to the gas limit. So the
 * payer's code cannot tell the call from the transaction. Only the block differs.
 */
async function confirm(
  chain: ChainState,
  from: Address | undefined,
  candidate: Candidate,
  { balance, allowance, code, atSeconds }: CallReads & { atSeconds: bigint | undefined },
): Promise<Simulation> {
  const { transfer, call } = candidate
  const passes = {
    kind: 'passes' as const,
    balanceAtomic: balance ?? 0n,
    allowanceAtomic: allowance,
  }
  if (!isContract(candidate.code) && !isContract(code)) return { ...passes, code }
  const bid = fees(chain.head, chain.network.feeCapWei)
  const gas = Gas.limitAlone(transfer, true)
  try {
    const { to, data } = call
    await ethCall(chain, { from, to, data, gas, fees: bid, atSeconds })
  } catch (error) {
    return unusable(transfer, error)
  }
  // An undeployed wallet is identified by its factory.
  const factory = { key: `factory ${factoryOf(transfer) ?? transfer.payer}` }
  return { ...passes, code: isIdentified(code) ? code : factory, fees: bid }
}

function unusable(transfer: Transfer.Transfer, error: unknown): Refusals.PaymentRefusal {
  if (!isSpentGas(error)) return Refusals.unavailable(error)
  const detail =
    `The transfer runs out of gas on ${transfer.network}: the code of the payer ${transfer.payer} ` +
    'uses too much.'
  return Refusals.refuse(Refusals.simulationReason(transfer), detail)
}

/** Gas of creation code and of its returned bytes, which nodes charge like deployed code. */
const creationGas = 700_000n

type CallAnswer = {
  code: AccountCode
  /** Of the block in which the calls ran. */
  timestamp: bigint | undefined
  baseFeeWei: bigint | undefined
  results: Multicall.Result[]
}

/**
 * Results of the calls, what is known of their block, and the payer's code where the node returns it.
 * Throws RpcFault or RpcError.
 */
async function aggregateWithCode(
  chain: ChainState,
  from: Address | undefined,
  payer: Address,
  {
    calls,
    gas,
    ...rest
  }: { calls: readonly Multicall.Call[]; gas: bigint; atSeconds?: bigint | undefined },
): Promise<CallAnswer | undefined> {
  const withoutCode = async (code: AccountCode) => {
    const all = [Multicall.timestampCall, Multicall.baseFeeCall, ...calls]
    const answers = await callInOneBlock(chain, from, all, { gas, ...rest })
    if (answers === undefined) return undefined
    const [timestamp, baseFee, ...results] = answers
    return { code, timestamp: uintOf(timestamp), baseFeeWei: uintOf(baseFee), results }
  }
  if (!chain.abilities.readsCode) return withoutCode('unknown')
  const data = Multicall.aggregateWithCode(payer, calls)
  let answer: unknown
  try {
    answer = await ethCall(chain, { from, data, gas: gas + creationGas, ...rest })
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    // When the read of the code fails, only the payer's code can have used that much gas.
    return withoutCode(isSpentGas(error) ? { key: 'out-of-gas' } : 'unknown')
  }
  return Multicall.parseWithCode(answer, calls.length)
}

/** `absent`: there is no code that could verify the signature, or none that answers. */
function judgeWallet({ success, data }: Multicall.Result): 'accepts' | 'refuses' | 'absent' {
  if (success && Token.isMagic(data)) return 'accepts'
  return success && data === '0x' ? 'absent' : 'refuses'
}

/** The node to call: the URL of a network that is in use, or a given one. */
export type NodeState = Pick<ChainState, 'head' | 'network' | 'abilities'> & {
  client: Pick<Node, 'call'>
}

/** Parameters of a call; by default those of a transaction that would be signed now. */
type EthCall = {
  from: Address | undefined
  /** Receiver of the call; without it, `data` is creation code. */
  to?: Address
  data: Hex
  gas: bigint
  fees?: Fees
  /**
   * Time of the block that it runs in (unix seconds), where the node supports it; undefined: that
   * of the newest.
   */
  atSeconds?: bigint | undefined
}

/**
 * Calls eth_call in the state of the newest block. Limit, fees and sender are those of the
 * transaction, and nodes subtract the cost from the balance alike. So the called code cannot tell a
 * simulation from the transaction. Throws RpcFault or RpcError.
 */
async function ethCall(chain: NodeState, call: EthCall): Promise<unknown> {
  try {
    return await ask(chain, call)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (isUnknownOverride(error) && chain.abilities.hasOverrides && call.atSeconds !== undefined) {
      chain.abilities.hasOverrides = false
      return ethCall(chain, call)
    }
    if (!/base fee|max fee|fee cap/i.test(error.message)) throw error
    // The base fee rose since it was last read.
    const block = parseBlock(await chain.client.call('eth_getBlockByNumber', ['latest', false]))
    if (!block) throw error
    observeBlock(chain.head, block)
    return ask(chain, call)
  }
}

function ask({ client, head, network, abilities }: NodeState, call: EthCall): Promise<unknown> {
  const { from, to, data, gas, atSeconds } = call
  const { maxFeeWei, maxTipWei } = call.fees ?? fees(head, network.feeCapWei)
  const request = {
    ...(from && { from }),
    ...(to && { to }),
    data,
    gas: toHex(gas),
    maxFeePerGas: toHex(maxFeeWei),
    maxPriorityFeePerGas: toHex(maxTipWei),
  }
  if (atSeconds === undefined || !abilities.hasOverrides)
    return client.call('eth_call', [request, 'latest'])
  // State overrides, then block overrides. geth.ethereum.org/docs/interacting-with-geth/rpc/ns-eth
  return client.call('eth_call', [request, 'latest', {}, { time: toHex(atSeconds) }])
}

/** The node does not support block overrides. A contract cannot produce such an error. */
function isUnknownOverride(error: RpcError): boolean {
  if (isSpentGas(error)) return false
  return error.code === -32602 || /too many (arguments|param)|overrid/i.test(error.message)
}

/**
 * The call ran out of gas. A payer's wallet may use all of it, including that of the other reads.
 */
export function isSpentGas(error: unknown): boolean {
  if (!(error instanceof RpcError)) return false
  return error.code === 3 || /out ?of ?gas|revert/i.test(error.message)
}

/**
 * The time (unix seconds) to simulate transfers at. Used when the newest block is old and earlier
 * than a `validAfter`: where blocks are rare, the next block is as late as the transaction.
 * Undefined: simulate in the newest block.
 */
function timeFor(
  { head }: Pick<ChainState, 'head'>,
  transfers: readonly { validAfter: bigint }[],
  now: number,
): bigint | undefined {
  const { isOld, timestamp } = head
  if (!isOld || !transfers.some(({ validAfter }) => validAfter >= timestamp)) return undefined
  return BigInt(Math.floor(now / 1000))
}

function toHex(value: bigint): Hex {
  return `0x${value.toString(16)}`
}

/** Results of calls in the state of one block. Throws RpcFault or RpcError. */
export async function callInOneBlock(
  chain: NodeState,
  from: Address | undefined,
  calls: readonly Multicall.Call[],
  options: { gas: bigint; atSeconds?: bigint | undefined },
): Promise<Multicall.Result[] | undefined> {
  const { to, data } = Multicall.aggregate(calls)
  const answer = await ethCall(chain, { from, to, data, ...options })
  return Multicall.parseResults(answer, calls.length)
}

/** The integer that a call returned; undefined when it failed. */
export function uintOf(result: Multicall.Result | undefined): bigint | undefined {
  return result?.success ? Abi.uintAt(result.data.slice(2)) : undefined
}

/** A transfer whose signature is the payer's own, or that only the payer's code can verify. */
export type SignedTransfer = {
  kind: 'signed'
  transfer: Transfer.Transfer
  /** `unknown`: the payer's own key signed, and its code was not read. */
  code: 'contract' | 'unknown'
}

/** Code is cached for this long, because a wallet can be deployed and a delegation withdrawn. */
const codeKeptMs = 60_000
const noCodeKeptMs = 10_000
const codesMax = 10_000

/**
 * Recovers the signer without I/O. Only when that is not the payer, reads whether the payer has
 * code, which may accept the signature (ERC-1271, EIP-7702). An ERC-6492 wrapper stays on the
 * signature when, and only when, the settling call is to deploy the payer.
 */
export async function checkSignature(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<SignedTransfer | Refusals.PaymentRefusal> {
  const digest = Transfer.digest(transfer, chain.network.asset)
  if (Crypto.recover(digest, transfer.signature) === transfer.payer) {
    return assumeSigned(transfer)
  }
  const own = unwrap(transfer)
  const mayDeploy = isAllowed(chain, transfer)
  // It may have been deployed since: a second deployment would use all gas.
  if (mayDeploy) chain.known.codes.delete(transfer.payer)
  try {
    if ((await codeOf(chain, transfer.payer, now)) === 'contract') {
      return { kind: 'signed', transfer: own, code: 'contract' }
    }
  } catch (error) {
    return Refusals.unavailable(error)
  }
  if (mayDeploy) return { kind: 'signed', transfer, code: 'contract' }
  if (own !== transfer) return Refusals.refuseFactory(transfer)
  return Refusals.refuseSignature(transfer, chain.network.asset.eip712)
}

/** The same with the signature that the wallet itself verifies, without an ERC-6492 wrapper. */
export function unwrap(transfer: Transfer.Transfer): Transfer.Transfer {
  const wrapper = Transfer.wrapperOf(transfer)
  return wrapper ? { ...transfer, signature: wrapper.signature } : transfer
}

/** A transfer that no key of the payer signed, as it would be settled. Verifies nothing. */
async function openWrapper(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<SignedTransfer | Refusals.PaymentRefusal> {
  if (isAllowed(chain, transfer)) return checkSignature(chain, transfer, now)
  return { kind: 'signed', transfer: unwrap(transfer), code: 'contract' }
}

/** For a caller that has recovered the payer from the signature itself. */
export function assumeSigned(transfer: Transfer.Transfer): SignedTransfer {
  const signature = Crypto.withCanonicalV(transfer.signature)
  return { kind: 'signed', transfer: { ...transfer, signature }, code: 'unknown' }
}

async function codeOf(chain: ChainState, payer: Address, now: number): Promise<'eoa' | 'contract'> {
  const known = chain.known.codes.get(payer)
  if (known && known.until > now) return known.code
  const code = (await hasCode(chain, payer)) ? 'contract' : 'eoa'
  const until = now + (code === 'contract' ? codeKeptMs : noCodeKeptMs)
  if (chain.known.codes.size >= codesMax) chain.known.codes.clear()
  chain.known.codes.set(payer, { code, until })
  return code
}

/** Whether an account has code. Throws RpcFault or RpcError. */
export async function hasCode({ client }: ChainState, address: Address): Promise<boolean> {
  const code = await client.call('eth_getCode', [address, 'latest'])
  if (!isHex(code)) throw new RpcFault('not a code')
  return code !== '0x'
}

type Signature = Pick<Transfer.Transfer, 'method' | 'signature'>

/** Whether the transfer names a factory that may be called for it. */
function isAllowed({ factories }: ChainState, transfer: Signature): boolean {
  const wrapper = Transfer.wrapperOf(transfer)
  return wrapper !== undefined && factories.has(wrapper.factory)
}

/** The factory that the transfer names, if any. */
function factoryOf(transfer: Signature): string | undefined {
  return Transfer.wrapperOf(transfer)?.factory
}

/**
 * The settling call. When the transfer still has its ERC-6492 wrapper, Multicall3 first calls the
 * factory, so that a relayer never sends the payer's bytes itself. The deployment may fail, as it
 * does when the wallet was deployed meanwhile. The transfer must not fail.
 */
export function callOf(transfer: Transfer.Transfer): Multicall.Call {
  const wrapper = Transfer.wrapperOf(transfer)
  if (!wrapper) return Transfer.call(transfer)
  const { factory, data, signature } = wrapper
  return Multicall.aggregate([
    { to: factory, data },
    { ...Transfer.call({ ...transfer, signature }), isRequired: true },
  ])
}
