import type { Address } from 'viem'
import { RpcError } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import * as Token from '../../chain/token'
import * as Gas from '../state/gas-budget'
import { type ChainState, isForged } from '../state/state'
import * as EthCall from './eth-call'
import { type Candidate, examine, type Simulation } from './examine'
import * as Refusals from './refusals'

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
  const alone = (candidate: Candidate) => examine(chain, from, candidate, { now })
  const [first] = candidates
  if (first && candidates.length === 1) return [await alone(first)]
  let results: Multicall.Result[] | undefined
  try {
    results = await simulateTogether(chain, from, candidates, now)
  } catch (error) {
    if (!(error instanceof RpcError)) return candidates.map(() => Refusals.unavailable(error))
    // One of them uses the gas of the others, or the relayer cannot pay for all of them.
    return inSequence(candidates, await Promise.all(candidates.map(alone)))
  }
  if (!results) return candidates.map(() => Refusals.unavailable(undefined))
  const baseFeeWei = EthCall.uintOf(results[0])
  // The transaction that follows uses the price of this block.
  if (baseFeeWei) chain.head.baseFeeWei = baseFeeWei
  return Promise.all(
    candidates.map((each, index) => {
      const own = results.slice(1 + index * 3)
      return judge(chain, each, own, () => alone(each))
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
    return passes(simulation.balanceAtomic - before)
  })
}

/** Simulates a failed member alone to find the reason. */
async function judge(
  { network }: Pick<ChainState, 'network'>,
  { transfer, signer }: Candidate,
  [nonce, balance, settled]: readonly Multicall.Result[],
  ask: () => Promise<Simulation>,
): Promise<Simulation> {
  const used = EthCall.isUsed(transfer, EthCall.uintOf(nonce))
  if (used) return { kind: 'used' }
  if (settled?.success === true && used === false) return passes(EthCall.uintOf(balance) ?? 0n)
  if (isForged(signer)) return Refusals.refuseSignature(transfer, network.asset.eip712)
  const alone = await ask()
  return alone.kind === 'passes' ? Refusals.underWay : alone
}

/** A joint simulation does not read the code of a payer. */
function passes(balanceAtomic: bigint): Simulation {
  return { kind: 'passes', balanceAtomic, code: 'unknown' }
}
