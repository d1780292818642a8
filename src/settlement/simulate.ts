import type { Address } from 'viem'
import { RpcError } from '../chain/client'
import * as Multicall from '../chain/multicall'
import * as Permit2 from '../chain/permit2'
import * as Token from '../chain/token'
import type { Asset } from '../protocol/Asset'
import * as Permit from '../protocol/Permit'
import * as Transfer from '../protocol/Transfer'
import type { Rail } from './context'
import { callOf } from './deploy'
import * as Gas from './gas'
import * as Verify from './verify'

export type Simulation =
  /** The transfer would succeed now; `balanceAtomic` is the payer's before it. */
  | { kind: 'passes'; balanceAtomic: bigint }
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
  if (candidate.isProven?.() === false) return refuseSignature(candidate.transfer)
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
  rail: Rail,
  from: Address | undefined,
  transfer: Transfer.Transfer,
  look: Look,
): Promise<Simulation> {
  const hasCode = !look.isDecidedByChain && !look.isSigned()
  return simulateOne(rail, from, { transfer, hasCode, call: callOf(transfer) }, look)
}

/** With the reads that explain a failure beside it. */
async function simulateOne(
  rail: Rail,
  from: Address | undefined,
  { transfer, hasCode, call }: Candidate,
  look?: Look,
): Promise<Simulation> {
  const { asset, payer } = transfer
  const { signature } = Verify.unwrap(transfer)
  const isPermit = transfer.method === 'permit2'
  const digest = look?.digest ?? (hasCode && Transfer.digest(transfer, rail.network.asset))
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
  const wallet = results[isPermit ? 7 : 5]
  const verdict = wallet && judgeWallet(wallet)
  const passes = settled && used === false
  if (passes && look?.isDecidedByChain) return { kind: 'passes', balanceAtomic: read[1] ?? 0n }
  if (look && verdict !== 'accepts' && !look.isSigned()) {
    const isUndeployed = verdict === 'absent' && look.isWrapped
    return isUndeployed ? Verify.refuseFactory() : refuseSignature(transfer)
  }
  // What the payer signed with this nonce is no business of who cannot sign for it.
  if (used) return hasCode && verdict === 'refuses' ? refuseSignature(transfer) : { kind: 'used' }
  if (passes) return { kind: 'passes', balanceAtomic: read[1] ?? 0n }
  return explain(rail, transfer, {
    used,
    balance: read[1],
    timestamp: read[2],
    allowance: isPermit ? read[4] : undefined,
    hasProxy: !isPermit || results[5]?.success === true,
    refusedByWallet: verdict === 'refuses' || (verdict === 'absent' && hasCode === true),
    eip712: look?.eip712,
  })
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
  /** The signing domain that the payer was told, if it need not be the token's. */
  eip712: Asset['eip712'] | undefined
}

/** First matching reason, in the order of the reference facilitator. */
function explain(rail: Rail, transfer: Transfer.Transfer, facts: Facts): Verify.Refusal {
  const { amountAtomic, validAfter, validBefore } = transfer
  const { eip712 } = rail.network.asset
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
  if (!isPermit && facts.eip712 && facts.eip712.name !== eip712.name) {
    return refuse('invalid_exact_evm_token_name_mismatch', `the token is named "${eip712.name}"`)
  }
  if (!isPermit && facts.eip712 && facts.eip712.version !== eip712.version) {
    const detail = `the signing domain of the token has version "${eip712.version}"`
    return refuse('invalid_exact_evm_token_version_mismatch', detail)
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
