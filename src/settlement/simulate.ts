import type { Address } from 'viem'
import { RpcError } from '../chain/client'
import * as Multicall from '../chain/multicall'
import * as Token from '../chain/token'
import * as EthCall from './ethcall'
import { type Candidate, examine, type Simulation } from './examine'
import * as Gas from './gas'
import * as Refusals from './refusals'
import { type ChainState, isForged } from './state'

const readsGas = 60_000n

/**
 * One eth_call of the exact calldata of all, in their order and in the state of one block, so that
 * what one payer spends first is missing later. `now` is unix ms. It runs inside Multicall3 because
 * some tokens accept a used nonce without a revert and without a transfer: only the read of the nonce
 * tells.
 */
export async function simulate(
  chain: ChainState,
  from: Address | undefined,
  candidates: readonly Candidate[],
  now: number,
): Promise<Simulation[]> {
  const alone = (candidate: Candidate) => examine(chain, from, candidate, { now })
  const [first] = candidates
  if (first && candidates.length === 1) return [await alone(first)]
  let results: Multicall.Result[] | undefined
  try {
    results = await simulateTogether(chain, from, candidates, now)
  } catch (error) {
    if (!(error instanceof RpcError)) return candidates.map(() => Refusals.unavailable(error))
    // One of them burns what the others need, or the relayer could not pay for all of them.
    return inSequence(candidates, await Promise.all(candidates.map(alone)))
  }
  if (!results) return candidates.map(() => Refusals.unavailable(undefined))
  const baseFeeWei = EthCall.uintOf(results[0])
  // The price of the transaction that follows is that of this very block.
  if (baseFeeWei) chain.head.baseFeeWei = baseFeeWei
  return Promise.all(
    candidates.map((each, index) => {
      const own = results.slice(1 + index * 3)
      return judge(each, own, () => alone(each))
    }),
  )
}

function simulateTogether(
  chain: ChainState,
  from: Address | undefined,
  candidates: readonly Candidate[],
  now: number,
): Promise<Multicall.Result[] | undefined> {
  const transfers = candidates.map(({ transfer }) => transfer)
  const calls = [Multicall.baseFeeCall]
  for (const { transfer, call } of candidates) {
    calls.push(EthCall.nonceCall(transfer), Token.balanceOf(transfer.asset, transfer.payer), call)
  }
  let gas = 200_000n
  for (const transfer of transfers) gas += Gas.limitOfMember(chain, transfer) + readsGas
  const atSeconds = EthCall.timeFor(chain, transfers, now)
  return EthCall.aggregate(chain, from, calls, { gas, atSeconds })
}

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
    return passes(simulation.balanceAtomic - before)
  })
}

/** Why it fails is asked for alone: that costs nothing while nothing fails. */
async function judge(
  { transfer, signer }: Candidate,
  [nonce, balance, settled]: readonly Multicall.Result[],
  ask: () => Promise<Simulation>,
): Promise<Simulation> {
  const used = EthCall.isUsed(transfer, EthCall.uintOf(nonce))
  if (used) return { kind: 'used' }
  if (settled?.success === true && used === false) return passes(EthCall.uintOf(balance) ?? 0n)
  if (isForged(signer)) return Refusals.refuseSignature(transfer)
  const alone = await ask()
  return alone.kind === 'passes' ? Refusals.underWay : alone
}

/** Together with others the code of a payer is not read. */
function passes(balanceAtomic: bigint): Simulation {
  return { kind: 'passes', balanceAtomic, code: 'unknown' }
}
