import type { Address } from 'viem'
import { RpcError } from '../chain/client'
import * as Multicall from '../chain/multicall'
import * as Permit2 from '../chain/permit2'
import * as Token from '../chain/token'
import * as Permit from '../protocol/Permit'
import * as Transfer from '../protocol/Transfer'
import type { Rail } from './context'
import * as Gas from './gas'
import * as Verify from './verify'

export type Simulation =
  /** The transfer would succeed now; `balanceAtomic` is the payer's before it. */
  | { kind: 'passes'; balanceAtomic: bigint }
  /** The chain says that this nonce is used or cancelled. */
  | { kind: 'used' }
  | Verify.Refusal

/** What is simulated: a signed transfer and its settling call. */
export type Candidate = Pick<Verify.Signed, 'transfer' | 'hasCode'> & { call: Multicall.Call }

/**
 * One eth_call of the exact calldata of all, in their order and in the state of one block, so that
 * what one payer spends first is missing later. It runs inside Multicall3 because some tokens accept
 * a used nonce without a revert and without a transfer: only the read of the nonce tells.
 */
export async function simulate(
  rail: Rail,
  from: Address | undefined,
  candidates: readonly Candidate[],
): Promise<Simulation[]> {
  const [first] = candidates
  if (first && candidates.length === 1) return [await simulateOne(rail, from, first)]
  const gas = candidates.reduce(
    (sum, { transfer }) => sum + Gas.limitOf(rail, transfer) + readsGas,
    200_000n,
  )
  const calls = [Multicall.baseFeeCall]
  for (const { transfer, call } of candidates) {
    calls.push(Verify.nonceCall(transfer), Token.balanceOf(transfer.asset, transfer.payer), call)
  }
  let results: Multicall.Result[] | undefined
  try {
    results = await Verify.aggregate(rail, from, calls, gas)
  } catch (error) {
    if (!(error instanceof RpcError)) return candidates.map(() => Verify.unavailable(error))
    // One of them burns what the others need, or the relayer could not pay for all of them.
    const alone = await Promise.all(candidates.map((each) => simulateOne(rail, from, each)))
    return inSequence(candidates, alone)
  }
  if (!results) return candidates.map(() => Verify.unavailable(undefined))
  noteBaseFee(rail, uintOf(results[0]))
  return Promise.all(
    candidates.map((each, index) => judge(rail, from, each, results.slice(1 + index * 3))),
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
  rail: Rail,
  from: Address | undefined,
  candidate: Candidate,
  [nonce, balance, settled]: readonly Multicall.Result[],
): Promise<Simulation> {
  const used = Verify.isUsed(candidate.transfer, uintOf(nonce))
  if (used) return { kind: 'used' }
  if (settled?.success === true && used === false) {
    return { kind: 'passes', balanceAtomic: uintOf(balance) ?? 0n }
  }
  const alone = await simulateOne(rail, from, candidate)
  if (alone.kind !== 'passes') return alone
  return underWay
}

/** Alone it would pay: others of the same payer go first. */
export const underWay: Verify.Refusal = {
  kind: 'unavailable',
  detail: 'Other payments of this payer are under way.',
  retryAfterSeconds: 1,
}

/** With the reads that explain a failure beside it. */
async function simulateOne(
  rail: Rail,
  from: Address | undefined,
  { transfer, hasCode, call }: Candidate,
): Promise<Simulation> {
  const { asset, payer, signature } = transfer
  const isPermit = transfer.method === 'permit2'
  const calls = [
    Verify.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    Multicall.timestampCall,
    Multicall.baseFeeCall,
    ...(isPermit
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2]
      : []),
    call,
    ...(hasCode
      ? [Token.isValidSignature(payer, Transfer.digest(transfer, rail.network.asset), signature)]
      : []),
  ]
  let results: Multicall.Result[] | undefined
  try {
    const gas = 2n * Verify.gasLimit(transfer, hasCode) + 200_000n
    results = await Verify.aggregate(rail, from, calls, gas)
  } catch (error) {
    if (!Verify.isSpentGas(error)) return Verify.unavailable(error)
    return Verify.refuse(Verify.simulationReason(transfer), 'the transfer runs out of gas')
  }
  if (!results) return Verify.unavailable(undefined)
  const read = results.map(uintOf)
  noteBaseFee(rail, read[3])
  const settled = results[isPermit ? 6 : 4]?.success === true
  const used = Verify.isUsed(transfer, read[0])
  if (used) return { kind: 'used' }
  if (settled && used === false) return { kind: 'passes', balanceAtomic: read[1] ?? 0n }
  const wallet = hasCode ? results[isPermit ? 7 : 5] : undefined
  return explain(transfer, {
    used,
    balance: read[1],
    timestamp: read[2],
    allowance: isPermit ? read[4] : undefined,
    hasProxy: !isPermit || results[5]?.success === true,
    refusedByWallet: wallet !== undefined && !(wallet.success && Token.isMagic(wallet.data)),
  })
}

/** The price of the transaction that follows is that of this very block. */
function noteBaseFee(rail: Rail, wei: bigint | undefined): void {
  if (wei) rail.head.baseFeeWei = wei
}

function uintOf(result: Multicall.Result | undefined): bigint | undefined {
  return result?.success ? Token.toUint(result.data) : undefined
}

type Facts = {
  used: boolean | undefined
  balance: bigint | undefined
  timestamp: bigint | undefined
  allowance: bigint | undefined
  hasProxy: boolean
  refusedByWallet: boolean
}

/** First matching reason, in the order of the reference facilitator. */
function explain(transfer: Transfer.Transfer, facts: Facts): Verify.Refusal {
  const { amountAtomic, validAfter, validBefore } = transfer
  const isPermit = transfer.method === 'permit2'
  const { refuse } = Verify
  if (facts.refusedByWallet) {
    return refuse(Verify.signatureReason(transfer), 'the wallet of the payer refuses the signature')
  }
  const time = facts.timestamp
  if (time !== undefined && time >= validBefore) {
    return refuse(Verify.expiredReason(transfer), 'the authorization has expired on chain')
  }
  if (time !== undefined && (isPermit ? time < validAfter : time <= validAfter)) {
    return refuse(
      isPermit ? 'permit2_not_yet_valid' : 'invalid_exact_evm_payload_authorization_valid_after',
      'the authorization is not valid on chain yet',
    )
  }
  if (!facts.hasProxy) {
    return refuse('permit2_proxy_not_deployed', 'x402ExactPermit2Proxy is not on this chain')
  }
  if (facts.used === undefined && !isPermit) {
    return refuse('invalid_exact_evm_eip3009_not_supported', 'the token has no EIP-3009')
  }
  if (facts.balance !== undefined && facts.balance < amountAtomic) {
    return refuse(
      isPermit ? 'permit2_insufficient_balance' : 'invalid_exact_evm_insufficient_balance',
      'the balance of the payer is below the amount',
    )
  }
  if (facts.allowance !== undefined && facts.allowance < amountAtomic) {
    return refuse('permit2_allowance_required', 'the payer has not approved Permit2 for the token')
  }
  return refuse(Verify.simulationReason(transfer), 'the transfer fails in simulation')
}
