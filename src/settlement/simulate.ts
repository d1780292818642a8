import type { Address } from 'viem'
import { RpcError } from '../chain/client'
import { type Fees, fees, observeTime } from '../chain/head'
import * as Multicall from '../chain/multicall'
import * as Permit2 from '../chain/permit2'
import * as Token from '../chain/token'
import type { Asset } from '../protocol/Asset'
import * as Permit from '../protocol/Permit'
import * as Transfer from '../protocol/Transfer'
import { type Code, splitCode, withCode } from './code'
import type { ChainState } from './context'
import { callOf, factoryOf } from './deploy'
import { ethCall, isSpentGas, timeFor } from './ethcall'
import { explain, isEarly, tooEarly } from './explain'
import * as Gas from './gas'
import * as Verify from './verify'

export type Simulation =
  /**
   * The transfer would succeed now; `balanceAtomic` is the payer's before it. `code`: what is behind
   * the payer, undefined where that was not read. `fees`: those that its code was shown.
   */
  | { kind: 'passes'; balanceAtomic: bigint; code?: Code | undefined; fees?: Fees }
  /** The chain says that this nonce is used or cancelled. */
  | { kind: 'used' }
  | Verify.Refusal

/** What is simulated: a signed transfer and its settling call. */
export type Candidate = Pick<Verify.Signed, 'transfer' | 'hasCode'> & {
  call: Multicall.Call
  /** Whether the payer's own key signed; undefined when that is known. */
  isProven?: (() => boolean) | undefined
}

/**
 * One eth_call of the exact calldata of all, in their order and in the state of one block, so that
 * what one payer spends first is missing later. `now` is unix ms. It runs inside Multicall3 because some tokens accept
 * a used nonce without a revert and without a transfer: only the read of the nonce tells.
 */
export async function simulate(
  chain: ChainState,
  from: Address | undefined,
  candidates: readonly Candidate[],
  now: number,
): Promise<Simulation[]> {
  const [first] = candidates
  if (first && candidates.length === 1) return [await simulateOne(chain, from, first, { now })]
  const gas = candidates.reduce(
    (sum, { transfer }) => sum + Gas.limitOf(chain, transfer) + readsGas,
    200_000n,
  )
  const calls = [Multicall.baseFeeCall]
  for (const { transfer, call } of candidates) {
    calls.push(Verify.nonceCall(transfer), Token.balanceOf(transfer.asset, transfer.payer), call)
  }
  let results: Multicall.Result[] | undefined
  try {
    const atSeconds = timeFor(
      chain,
      candidates.map(({ transfer }) => transfer),
      now,
    )
    results = await Verify.aggregate(chain, from, calls, { gas, atSeconds })
  } catch (error) {
    if (!(error instanceof RpcError)) return candidates.map(() => Verify.unavailable(error))
    // One of them burns what the others need, or the relayer could not pay for all of them.
    const alone = await Promise.all(
      candidates.map((each) => simulateOne(chain, from, each, { now })),
    )
    return inSequence(candidates, alone)
  }
  if (!results) return candidates.map(() => Verify.unavailable(undefined))
  noteBaseFee(chain, uintOf(results[0]))
  return Promise.all(
    candidates.map((each, index) => {
      const own = results.slice(1 + index * 3)
      return judge(each, own, () => simulateOne(chain, from, each, { now }))
    }),
  )
}

const readsGas = 60_000n

/** Each saw the whole balance of its payer: what the earlier ones spend is missing for the later. */
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
    return { kind: 'passes', balanceAtomic: simulation.balanceAtomic - before }
  })
}

/** Why it fails is asked for alone: that costs nothing while nothing fails. */
async function judge(
  candidate: Candidate,
  [nonce, balance, settled]: readonly Multicall.Result[],
  ask: () => Promise<Simulation>,
): Promise<Simulation> {
  const used = Verify.isUsed(candidate.transfer, uintOf(nonce))
  if (used) return { kind: 'used' }
  if (settled?.success === true && used === false) {
    return { kind: 'passes', balanceAtomic: uintOf(balance) ?? 0n }
  }
  if (candidate.isProven?.() === false) return refuseSignature(candidate.transfer)
  const alone = await ask()
  if (alone.kind !== 'passes') return alone
  return underWay
}

/** Alone it would pay: others of the same payer go first. */
export const underWay: Verify.Refusal = {
  kind: 'unavailable',
  detail: 'Other payments of this payer are under way.',
  retryAfterSeconds: 1,
}

/** A signature that nobody has judged. */
export type Look = {
  /** When the transfer passes with it, it is the payer's: the chain reads it as we do. */
  isDecidedByChain: boolean
  /** Whether the payer's own key signed the digest; asked when the chain does not decide. */
  isSigned: () => boolean
  /** It came with the call that would deploy the wallet (ERC-6492). */
  isWrapped: boolean
  /** What was signed: of the domain below, which need not be the token's. */
  digest: Uint8Array
  eip712: Asset['eip712']
}

/**
 * All that one call can say of a transfer: whether the payer's contract accepts the signature, whether
 * the transfer would succeed now, and if not the first reason in the order of the reference facilitator.
 */
export function examine(
  chain: ChainState,
  from: Address | undefined,
  transfer: Transfer.Transfer,
  options: { look: Look; now: number },
): Promise<Simulation> {
  const { look } = options
  const hasCode = !look.isDecidedByChain && !look.isSigned()
  const candidate = { transfer, hasCode, call: callOf(transfer), isProven: look.isSigned }
  return simulateOne(chain, from, candidate, options)
}

type Asked = { now: number; look?: Look | undefined }

/** With the reads that explain a failure beside it. */
async function simulateOne(
  chain: ChainState,
  from: Address | undefined,
  candidate: Candidate,
  { now, look }: Asked,
): Promise<Simulation> {
  const { transfer, hasCode, call } = candidate
  const { asset, payer } = transfer
  const { signature } = Verify.unwrap(transfer)
  const isPermit = transfer.method === 'permit2'
  const digest = look?.digest ?? (hasCode && Transfer.digest(transfer, chain.network.asset))
  const calls = [
    Verify.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    Multicall.timestampCall,
    Multicall.baseFeeCall,
    ...(isPermit
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2]
      : []),
    call,
    ...(digest ? [Token.isValidSignature(payer, digest, signature)] : []),
  ]
  const atSeconds = timeFor(chain, [transfer], now)
  const gas = 2n * Verify.gasLimit(transfer, hasCode) + 200_000n
  let answer: Awaited<ReturnType<typeof aggregateWithCode>>
  try {
    answer = await aggregateWithCode(chain, from, payer, { calls, gas, atSeconds })
  } catch (error) {
    return unusable(transfer, error)
  }
  if (!answer) return Verify.unavailable(undefined)
  const { code, results } = answer
  const read = results.map(uintOf)
  noteBaseFee(chain, read[3])
  const time = read[2]
  if (atSeconds === undefined && time !== undefined) observeTime(chain.head, time, now)
  // The node ignored the override, so send it none from now on.
  else if (time !== atSeconds) chain.hasOverrides = false
  const settled = results[isPermit ? 6 : 4]?.success === true
  const used = Verify.isUsed(transfer, read[0])
  const wallet = results[isPermit ? 7 : 5]
  const verdict = wallet && judgeWallet(wallet)
  const passes = settled && used === false
  const pass = () =>
    confirm(chain, from, candidate, { balanceAtomic: read[1] ?? 0n, code, atSeconds })
  if (passes && look?.isDecidedByChain) return pass()
  if (look && verdict !== 'accepts' && !look.isSigned()) {
    const isUndeployed = verdict === 'absent' && look.isWrapped
    return isUndeployed ? Verify.refuseFactory() : refuseSignature(transfer)
  }
  // What the payer signed with this nonce is no business of who cannot sign for it.
  if (used) return hasCode && verdict === 'refuses' ? refuseSignature(transfer) : { kind: 'used' }
  if (passes) return pass()
  const facts = {
    used,
    balance: read[1],
    timestamp: time,
    allowance: isPermit ? read[4] : undefined,
    hasProxy: !isPermit || results[5]?.success === true,
    refusedByWallet: verdict === 'refuses' || (verdict === 'absent' && hasCode === true),
    eip712: look?.eip712,
  }
  const isSigned = () => code === 'none' && candidate.isProven?.() !== false && !hasCode
  // Simulate again, because this answer showed how old the newest block is.
  const isLater = atSeconds === undefined && timeFor(chain, [transfer], now) !== undefined
  if (isLater && chain.hasOverrides) return simulateOne(chain, from, candidate, { now, look })
  if (isEarly(chain, transfer, facts, now)) {
    return isSigned() ? { kind: 'passes', balanceAtomic: read[1] ?? 0n, code } : tooEarly
  }
  return explain(chain, transfer, facts)
}

/**
 * Simulates again with exactly the transaction that would follow, up to the gas limit, so that the
 * payer's code cannot tell the call from the transaction. Only the block differs.
 */
async function confirm(
  chain: ChainState,
  from: Address | undefined,
  { transfer, hasCode, call }: Candidate,
  seen: { balanceAtomic: bigint; code: Code | undefined; atSeconds: bigint | undefined },
): Promise<Simulation> {
  const { balanceAtomic, code, atSeconds } = seen
  if (!hasCode && (code === 'none' || code === undefined)) {
    return { kind: 'passes', balanceAtomic, code }
  }
  const bid = fees(chain.head, chain.network.feeCapWei)
  const gas = Verify.gasLimit(transfer, true)
  try {
    await ethCall(chain, { from, to: call.to, data: call.data, gas, fees: bid, atSeconds })
  } catch (error) {
    return unusable(transfer, error)
  }
  return { kind: 'passes', balanceAtomic, code: keyed(transfer, code), fees: bid }
}

/** An undeployed wallet is identified by its factory. */
function keyed(transfer: Transfer.Transfer, code: Code | undefined): Code {
  if (typeof code === 'object') return code
  return { key: `factory ${factoryOf(transfer) ?? transfer.payer}` }
}

function unusable(transfer: Transfer.Transfer, error: unknown): Verify.Refusal {
  if (!isSpentGas(error)) return Verify.unavailable(error)
  return Verify.refuse(Verify.simulationReason(transfer), 'the transfer runs out of gas')
}

/** Gas of creation code and of its returned bytes, which nodes charge like deployed code. */
const creationGas = 700_000n

/** Results of the calls, and the payer's code where the node tells it. Throws RpcFault or RpcError. */
async function aggregateWithCode(
  chain: ChainState,
  from: Address | undefined,
  payer: Address,
  {
    calls,
    gas,
    ...rest
  }: { calls: readonly Multicall.Call[]; gas: bigint; atSeconds?: bigint | undefined },
): Promise<{ code: Code | undefined; results: Multicall.Result[] } | undefined> {
  const plainly = async (code?: Code) => {
    const results = await Verify.aggregate(chain, from, calls, { gas, ...rest })
    return results && { code, results }
  }
  if (!chain.readsCode) return plainly()
  const data = withCode(payer, Multicall.aggregate(calls))
  let answer: unknown
  try {
    answer = await ethCall(chain, { from, data, gas: gas + creationGas, ...rest })
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    // Without an answer of the code read, only the payer's code can have burnt that much gas.
    return plainly(isSpentGas(error) ? { key: 'burning' } : undefined)
  }
  const split = splitCode(answer)
  const results = split && Multicall.parseResults(split.data, calls.length)
  return split && results && { code: split.code, results }
}

/** `absent`: there is no code that could judge, or none that answers. */
function judgeWallet({ success, data }: Multicall.Result): 'accepts' | 'refuses' | 'absent' {
  if (success && Token.isMagic(data)) return 'accepts'
  return success && data === '0x' ? 'absent' : 'refuses'
}

/** Neither the payer's key nor a contract of the payer stands behind the signature. */
function refuseSignature(transfer: Transfer.Transfer): Verify.Refusal {
  return Verify.refuse(Verify.signatureReason(transfer), 'the signature is not of the payer')
}

/** The price of the transaction that follows is that of this very block. */
function noteBaseFee(chain: ChainState, wei: bigint | undefined): void {
  if (wei) chain.head.baseFeeWei = wei
}

function uintOf(result: Multicall.Result | undefined): bigint | undefined {
  return result?.success ? Token.toUint(result.data) : undefined
}
