import type { Lane, TakenLane } from '../../db/LaneLedger'
import type { Context } from './context'
import * as Health from './health'
import { pump } from './queue'
import { readCount } from './reads'
import * as Recover from './recover'
import type { ChainState, Relayer } from './state'

/**
 * Takes the accounts of the networks that no other process has, now and later. Resolves after the
 * first look. With one process nothing is to be taken.
 */
export async function start(context: Context): Promise<void> {
  const lanes = [...context.chains.values()].flatMap(({ network, relayers }): Lane[] => [
    { network: network.id, relayer: undefined },
    ...relayers.map(({ address }) => ({ network: network.id, relayer: address })),
  ])
  await context.ledger.lanes.start(lanes, {
    taken: (lane) => take(context, lane),
    release: (lane) => release(context, lane),
  })
}

/** Drives what an earlier holder left open, then lets the relayer sign. */
async function take(context: Context, lane: TakenLane): Promise<void> {
  const [chain, relayer] = relayerOf(context, lane)
  if (!chain || !relayer) return
  await relayer.turn(async () => {
    relayer.floor = Math.max(relayer.floor, lane.nextNonce)
    // What was read while another process used the account says nothing of its next nonce.
    relayer.next = undefined
    relayer.lag = undefined
  })
  try {
    await Recover.resumeSlots(context, relayer)
  } catch (error) {
    // What is driven here must not get another holder: the next sweep resumes the rest.
    if (relayer.slots.size === 0) throw error
    context.log('settlement-fault', { network: lane.network, error })
  }
  const count = await readCount(chain, relayer, 'pending').catch(() => undefined)
  // Without an answer the next health check reads it.
  if (count !== undefined) relayer.next = Math.max(relayer.next ?? 0, count, relayer.floor)
  const before = Health.reasonsOf(chain)
  relayer.isHeld = true
  context.log('lane-taken', { network: lane.network, relayer: relayer.address })
  if (!chain.health.isQuiet) Health.announce(context, chain, before)
  pump(context, chain)
}

function release(context: Context, lane: Lane): boolean {
  const [, relayer] = relayerOf(context, lane)
  if (!relayer) return true
  if (relayer.slots.size > 0 || relayer.isPreparing || relayer.preparing > 0) return false
  relayer.isHeld = false
  context.log('lane-given', { network: lane.network, relayer: relayer.address })
  return true
}

function relayerOf(
  { chains }: Pick<Context, 'chains'>,
  { network, relayer }: Lane,
): [chain: ChainState | undefined, relayer: Relayer | undefined] {
  const chain = chains.get(network)
  return [chain, chain?.relayers.find(({ address }) => address === relayer)]
}
