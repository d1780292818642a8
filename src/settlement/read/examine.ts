import type { Address } from 'viem'
import { RpcError } from '../../chain/client'
import {
  type AccountCode,
  type IdentifiedCode,
  isContract,
  isIdentified,
  splitCode,
  withCode,
} from '../../chain/code'
import { type Fees, fees, observeTime } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import * as Permit2 from '../../chain/permit2'
import * as Token from '../../chain/token'
import type { Asset } from '../../protocol/Asset'
import * as Permit from '../../protocol/Permit'
import * as Transfer from '../../protocol/Transfer'
import * as Gas from '../state/gas-budget'
import { type ChainState, isForged, type QueuedPayment, type Requested } from '../state/state'
import * as EthCall from './eth-call'
import * as Refusals from './refusals'
import * as Signature from './signature'

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
export type Candidate = Pick<QueuedPayment, 'transfer' | 'code' | 'signer' | 'call'> & {
  request?: Pick<Requested, 'verified'>
}

/**
 * Time for which the reads of a ceiling replace those of its charge, ms. The charge itself is
 * simulated.
 */
const verifiedMs = 2_000

/** A signature that is not verified yet. */
export type SignatureCheck = {
  /** Whether the chain decides: if the transfer passes with the signature, the payer signed it. */
  isDecidedByChain: boolean
  /** Whether the payer's own key signed the digest. Called when the chain does not decide. */
  isSigned: () => boolean
  /** Whether the signature came with the call that would deploy the wallet (ERC-6492). */
  isWrapped: boolean
  /** The signed digest, in the domain below, which need not be the token's. */
  digest: Uint8Array
  eip712: Asset['eip712']
}

/** `now` is unix ms. */
type Asked = { now: number; check?: SignatureCheck | undefined }

/**
 * Checks in one call whether the payer's contract accepts the signature and whether the transfer
 * would succeed now. Otherwise gives the first reason in the order of the reference facilitator.
 */
export async function examine(
  chain: ChainState,
  from: Address | undefined,
  candidate: Candidate,
  asked: Asked,
): Promise<Simulation> {
  const { transfer, code, request } = candidate
  const verified = request?.verified
  const atSeconds = EthCall.timeFor(chain, [transfer], asked.now)
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
    ;[answer, isSettled] = await Promise.all([reading, settling])
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
  const verdict = judge(chain, candidate, seen, asked.check)
  if (verdict === 'passes') return confirm(chain, from, candidate, { ...seen, atSeconds })
  if (verdict !== 'fails') return verdict
  // Simulate again, because this answer showed how old the newest block is.
  const isLater =
    atSeconds === undefined && EthCall.timeFor(chain, [transfer], asked.now) !== undefined
  if (isLater && chain.abilities.hasOverrides) return examine(chain, from, candidate, asked)
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
    await EthCall.ethCall(chain, { from, to, data, gas, atSeconds })
    return true
  } catch (error) {
    if (EthCall.isSpentGas(error)) return false
    throw error
  }
}

/** The settling call, and the reads that explain its failure. */
function callsFor(
  { network }: ChainState,
  { transfer, code, call }: Candidate,
  check: SignatureCheck | undefined,
): Multicall.Call[] {
  const { asset, payer, method } = transfer
  const digest = check?.digest ?? (isContract(code) && Transfer.digest(transfer, network.asset))
  return [
    EthCall.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    Multicall.timestampCall,
    Multicall.baseFeeCall,
    ...(method === 'permit2'
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2Of(transfer)]
      : []),
    ...(isDirect(transfer) ? [] : [call]),
    ...(digest
      ? [Token.isValidSignature(payer, digest, Signature.unwrap(transfer).signature)]
      : []),
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
  { code, results }: CallAnswer,
  isSettled: boolean | undefined,
): CallReads {
  const isPermit = transfer.method === 'permit2'
  const settlingAt = isPermit ? 6 : 4
  const [nonce, balance, timestamp, baseFeeWei, allowance] = results.map(EthCall.uintOf)
  const wallet = results[settlingAt + (isDirect(transfer) ? 0 : 1)]
  return {
    code,
    baseFeeWei,
    isSettled: isSettled ?? results[settlingAt]?.success === true,
    wallet: wallet && judgeWallet(wallet),
    used: EthCall.isUsed(transfer, nonce),
    balance,
    timestamp,
    allowance: isPermit ? allowance : undefined,
    // A call to an address without code succeeds and moves nothing.
    hasProxy: !isPermit || EthCall.uintOf(results[5]) !== undefined,
  }
}

function judge(
  { network }: ChainState,
  { transfer, code }: Candidate,
  { isSettled, used, wallet, hasProxy }: CallReads,
  check: SignatureCheck | undefined,
): Exclude<Simulation, { kind: 'passes' }> | 'passes' | 'fails' {
  const passes = isSettled && hasProxy && used === false
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
  const balanceAtomic = balance ?? 0n
  if (!isContract(candidate.code) && !isContract(code)) {
    return { kind: 'passes', balanceAtomic, allowanceAtomic: allowance, code }
  }
  const bid = fees(chain.head, chain.network.feeCapWei)
  const gas = Gas.limitAlone(transfer, true)
  try {
    const { to, data } = call
    await EthCall.ethCall(chain, { from, to, data, gas, fees: bid, atSeconds })
  } catch (error) {
    return unusable(transfer, error)
  }
  const identified = identify(transfer, code)
  return {
    kind: 'passes',
    balanceAtomic,
    allowanceAtomic: allowance,
    code: identified,
    fees: bid,
  }
}

/** An undeployed wallet is identified by its factory. */
function identify(transfer: Transfer.Transfer, code: AccountCode): IdentifiedCode {
  if (isIdentified(code)) return code
  return { key: `factory ${Signature.factoryOf(transfer) ?? transfer.payer}` }
}

function unusable(transfer: Transfer.Transfer, error: unknown): Refusals.PaymentRefusal {
  if (!EthCall.isSpentGas(error)) return Refusals.unavailable(error)
  const detail =
    `The transfer runs out of gas on ${transfer.network}: the code of the payer ${transfer.payer} ` +
    'uses too much.'
  return Refusals.refuse(Refusals.simulationReason(transfer), detail)
}

/** Gas of creation code and of its returned bytes, which nodes charge like deployed code. */
const creationGas = 700_000n

type CallAnswer = { code: AccountCode; results: Multicall.Result[] }

/**
 * Results of the calls, and the payer's code where the node returns it. Throws RpcFault or
 * RpcError.
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
    const results = await EthCall.aggregate(chain, from, calls, { gas, ...rest })
    return results && { code, results }
  }
  if (!chain.abilities.readsCode) return withoutCode('unknown')
  const data = withCode(payer, Multicall.aggregate(calls))
  let answer: unknown
  try {
    answer = await EthCall.ethCall(chain, { from, data, gas: gas + creationGas, ...rest })
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    // When the read of the code fails, only the payer's code can have used that much gas.
    return withoutCode(EthCall.isSpentGas(error) ? { key: 'out-of-gas' } : 'unknown')
  }
  const split = splitCode(answer)
  const results = split && Multicall.parseResults(split.data, calls.length)
  return split && results && { code: split.code, results }
}

/** `absent`: there is no code that could verify the signature, or none that answers. */
function judgeWallet({ success, data }: Multicall.Result): 'accepts' | 'refuses' | 'absent' {
  if (success && Token.isMagic(data)) return 'accepts'
  return success && data === '0x' ? 'absent' : 'refuses'
}
