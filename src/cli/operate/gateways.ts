import type { Overview } from '../../../db/LaneLedger'
import { align } from '../../books/formats'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { findGateways } from './database'

/** Prints the gateways that share a database, and the relayers of each. Returns the exit code. */
export async function gateways({ env, json, out }: Run<'gateways'>): Promise<number> {
  const overview = await findGateways(env)
  if (overview === undefined)
    throw new CommandError(
      'DATABASE_URL is not set: without it one process serves, and there is nothing to list',
    )
  if (json) out(JSON.stringify(toJson(overview), null, 2))
  else for (const line of toLines(overview)) out(line)
  return 0
}

function toJson({ gateways, lanes }: Overview) {
  const shown = lanes.map(({ network, relayer, holder = null, epoch, nextNonce: next }) => {
    const nextNonce = relayer === undefined ? null : next
    return { network, relayer: relayer ?? 'keeper', holder, epoch, nextNonce }
  })
  return { gateways, lanes: shown }
}

function toLines(overview: Overview): string[] {
  const { gateways, lanes } = toJson(overview)
  const hosts = new Map(gateways.map(({ id, host }) => [id, host]))
  const hashes = new Set(gateways.map(({ configHash }) => configHash))
  const gatewayRows = gateways.map(({ id, host, version, configHash, seenMsAgo }) => [
    ...[id, host, version || '-', configHash.slice(0, 8) || '-'],
    `${(seenMsAgo / 1_000).toFixed(1)} s ago`,
  ])
  const laneRows = lanes.map(({ network, relayer, holder, epoch, nextNonce }) => [
    network,
    relayer,
    holder === null ? 'free' : `${holder.slice(0, 8)} ${hosts.get(holder) ?? ''}`.trimEnd(),
    String(epoch),
    nextNonce === null ? '-' : String(nextNonce),
  ])
  return [
    ...align([['gateway', 'host', 'version', 'configuration', 'seen'], ...gatewayRows], 5),
    '',
    ...align([['network', 'relayer', 'holder', 'epoch', 'next nonce'], ...laneRows], 5),
    ...(gateways.length === 0 ? ['', 'no gateway serves'] : []),
    ...(hashes.size > 1
      ? ['', 'the configurations differ: give each gateway the same file, and send SIGHUP']
      : []),
  ]
}
