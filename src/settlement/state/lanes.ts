import type { Lane, TakenLane } from '../../../db/LaneLedger'
import { readCount } from '../read/reads'
import * as Recover from '../repair/recover'
import { pump } from '../send/queue'
import * as Health from './health'
import type { ChainState, Context, Relayer } from './state'
import { within } from './wait'

/**
 * Takes the accounts of the networks that no other process has, now and later. Resolves after the
 * first look. With one process nothing is to be taken. `onTaken`: an account was taken.
 */
export async function startLanes(context: Context, onTaken: () => void): Promise<void> {
  const lanes = [...context.chains.values()].flatMap(({ network, relayers }): Lane[] => [
    { network: network.id, relayer: undefined },
    ...relayers.map(({ address }) => ({ network: network.id, relayer: address })),
  ])
  await context.ledger.lanes.start(lanes, {
    async taken(lane) {
      await take(context, lane)
      onTaken()
    },
    release: (lane) => release(context, lane),
    keep: (lane) => keep(context, lane),
  })
  // Logs the state of each network once this process has looked for its accounts.
  for (const chain of context.chains.values()) {
    if (!chain.health.isQuiet) continue
    chain.health.isQuiet = false
    const before = chain.relayers.map(() => 'not checked yet')
    Health.announce(context, chain, before)
  }
}

/** Drives what an earlier holder left open, then lets the relayer sign. */
async function take(context: Context, lane: TakenLane): Promise<void> {
  const [chain, relayer] = relayerOf(context, lane)
  if (!chain || !relayer) return
  await relayer.turn(async () => {
    relayer.floor = Math.max(relayer.floor, lane.nextNonce)
    // A count that was read while another process used the account says nothing about its next
    // nonce.
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
  const before = Health.reasonsOf(chain)
  const begin = () => {
    if (!chain.health.isQuiet) Health.announce(context, chain, before)
    pump(context, chain)
  }
  // Without an answer the next health check reads it.
  const reading = readCount(chain, relayer, 'pending').then(
    (count) => {
      relayer.next = Math.max(relayer.next ?? 0, count, relayer.floor)
      return true
    },
    () => true,
  )
  // A node that answers late must not keep the other accounts from being taken.
  const isRead = await within(reading, countMs)
  relayer.isHeld = true
  context.log('lane-taken', { network: lane.network, relayer: relayer.address })
  begin()
  if (isRead === undefined) void reading.then(begin)
}

/** Longest wait for the count of an account that is taken, ms. */
const countMs = 2_000

function release(context: Context, lane: Lane): boolean {
  const [chain, relayer] = relayerOf(context, lane)
  if (!chain || !relayer) return true
  if (relayer.slots.size > 0 || relayer.isPreparing || relayer.preparing > 0) {
    // Under a steady load it would always have payments, and the other process would get no account.
    if (!chain.relayers.some(({ isLeaving }) => isLeaving)) relayer.isLeaving = true
    return false
  }
  relayer.isHeld = false
  keep(context, lane)
  context.log('lane-given', { network: lane.network, relayer: relayer.address })
  // Charges that name it are settled by its next holder.
  pump(context, chain)
  return true
}

/** Ends the giving of accounts of the network: each one stays here. */
function keep(context: Context, { network }: Pick<Lane, 'network'>): void {
  const chain = context.chains.get(network)
  const leaving = chain?.relayers.filter(({ isLeaving }) => isLeaving) ?? []
  for (const relayer of leaving) relayer.isLeaving = false
  if (chain && leaving.length > 0) pump(context, chain)
}

function relayerOf(
  { chains }: Pick<Context, 'chains'>,
  { network, relayer }: Lane,
): [chain: ChainState | undefined, relayer: Relayer | undefined] {
  const chain = chains.get(network)
  return [chain, chain?.relayers.find(({ address }) => address === relayer)]
}
