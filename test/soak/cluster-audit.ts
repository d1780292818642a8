import type { Hex } from 'viem'
import type { Finding } from './finding'
import type { Site } from './setup'

/** The networks on which money moves. */
type Sites = { sites: readonly Pick<Site, 'id' | 'chain'>[] }

/**
 * Checks what several gateways over one PostgreSQL must hold, in addition to the audit of one
 * gateway.
 */

export type Read = <Row>(sql: string) => Promise<readonly Row[]>

type LaneRow = { network: string; relayer: string; next_nonce: number; seconds: number | null }
type SentRow = {
  hash: Hex
  network: string
  relayer: string
  nonce: number
  state: string
  epoch: number | null
  cost_wei: string | null
  product: string
}

/** A gateway without a sign for so long is dead, s. */
const deadSeconds = 10
/** A living gateway keeps results of commits at most this long, s. */
const keptSeconds = 100

const lanesSql = `SELECT l.network, l.relayer, l.next_nonce,
  extract(epoch FROM clock_timestamp() - g.seen_at)::float8 AS seconds
  FROM lanes l LEFT JOIN gateways g ON g.id = l.holder ORDER BY l.network, l.relayer`
const sentSql = `SELECT hash, network, relayer, nonce, state, epoch, cost_wei, product
  FROM transactions ORDER BY network, relayer, nonce`
const keptSql = `SELECT count(*) AS n FROM commits c JOIN gateways g ON g.id = c.gateway
  WHERE c.at < clock_timestamp() - interval '${keptSeconds} s'`
const goneSql = `SELECT count(*) AS n FROM gateways
  WHERE seen_at < clock_timestamp() - interval '${deadSeconds} s'`

/** What is wrong while all gateways run and nothing happens: undefined when nothing is. */
export async function unsettled(read: Read, gateways: number): Promise<string | undefined> {
  const lanes = await read<LaneRow>(lanesSql)
  for (const { network, relayer, seconds } of lanes) {
    const lane = `the lane ${network} ${relayer}`
    if (seconds === null) return `${lane} has no holder`
    if (seconds > deadSeconds) return `${lane} is held by a gateway that is dead for ${seconds} s`
  }
  if ((await countOf(read, goneSql)) > 0) return 'a dead gateway is registered'
  const living = await countOf(read, 'SELECT count(*) AS n FROM gateways')
  if (living !== gateways) return `${living} gateways are registered, ${gateways} run`
  const kept = await countOf(read, keptSql)
  if (kept > 0) return `${kept} commits of living gateways are older than ${keptSeconds} s`
  return undefined
}

/** After the end of all gateways. */
export async function auditCluster(setup: Sites, read: Read): Promise<readonly Finding[]> {
  const sent = await read<SentRow>(sentSql)
  const lanes = await read<LaneRow>(lanesSql)
  const held = await countOf(read, 'SELECT count(*) AS n FROM lanes WHERE holder IS NOT NULL')
  const left = await countOf(read, 'SELECT count(*) AS n FROM gateways')
  const findings: Finding[] = [
    ...auditEpochs(sent),
    ...(await auditCosts(setup, sent, read)),
    ...(await auditNonces(setup, sent, lanes)),
  ]
  if (held > 0) findings.push({ kind: 'stuck', text: `${held} lanes are held after the end` })
  if (left > 0) findings.push({ kind: 'stuck', text: `${left} gateways are left after the end` })
  return findings
}

/**
 * The epoch in which an account nonce was first used never falls as nonces grow. A replacement has the
 * epoch of its time, which may be above that of the next nonce.
 */
function auditEpochs(sent: readonly SentRow[]): Finding[] {
  const findings: Finding[] = []
  for (const rows of Map.groupBy(sent, laneOf).values()) {
    let highest = -1
    for (const siblings of Map.groupBy(rows, ({ nonce }) => nonce).values()) {
      const epochs = siblings.map(({ epoch }) => epoch ?? -1)
      if (epochs.includes(-1))
        findings.push({ kind: 'mismatch', text: `no epoch: ${JSON.stringify(siblings)}` })
      const first = Math.min(...epochs)
      if (first < highest) {
        const text = `the epoch falls from ${highest} to ${first}: ${JSON.stringify(siblings)}`
        findings.push({ kind: 'mismatch', text })
      }
      highest = Math.max(highest, first)
      const included = siblings.filter(({ state }) => state === 'mined' || state === 'failed')
      if (included.length > 1)
        findings.push({ kind: 'double', text: `two at one nonce: ${JSON.stringify(included)}` })
    }
  }
  return findings
}

/** The sums of the budgets are those of the transactions, and those are the chain's. */
async function auditCosts(
  setup: Sites,
  sent: readonly SentRow[],
  read: Read,
): Promise<readonly Finding[]> {
  const findings: Finding[] = []
  const ended = sent.filter(({ state }) => state === 'mined' || state === 'failed')
  const costs = new Map<string, bigint>()
  for (const { network, product, cost_wei } of ended) {
    const key = `${network} ${product}`
    costs.set(key, (costs.get(key) ?? 0n) + BigInt(cost_wei ?? 0))
  }
  const sums = await read<{ network: string; product: string; wei: string }>(
    'SELECT network, product, sum(wei)::text AS wei FROM gas_spent GROUP BY 1, 2',
  )
  for (const { network, product, wei } of sums) {
    const due = costs.get(`${network} ${product}`) ?? 0n
    if (due === BigInt(wei)) continue
    const text = `the budget ${network} ${product} has ${wei} wei, its transactions cost ${due}`
    findings.push({ kind: 'mismatch', text })
  }
  for (const { id, chain } of setup.sites)
    for (const row of ended.filter(({ network }) => network === id)) {
      const receipt = (await chain.rpc('eth_getTransactionReceipt', [row.hash])) as {
        gasUsed: Hex
        effectiveGasPrice: Hex
      } | null
      const cost = receipt && BigInt(receipt.gasUsed) * BigInt(receipt.effectiveGasPrice)
      if (cost === BigInt(row.cost_wei ?? -1)) continue
      const text = `the chain says ${cost} wei of ${JSON.stringify(row)}`
      findings.push({ kind: 'mismatch', text })
    }
  return findings
}

/** The chain has used the account nonces that the rows have as included, and no other. */
async function auditNonces(
  setup: Sites,
  sent: readonly SentRow[],
  lanes: readonly LaneRow[],
): Promise<readonly Finding[]> {
  const findings: Finding[] = []
  for (const { id, chain } of setup.sites)
    for (const lane of lanes.filter(({ network }) => network === id)) {
      if (lane.relayer === 'keeper') continue
      const used = Number(await chain.rpc('eth_getTransactionCount', [lane.relayer, 'latest']))
      const rows = sent.filter((row) => laneOf(row) === laneOf(lane))
      const included = rows.filter(({ state }) => state === 'mined' || state === 'failed')
      const first = Math.min(...rows.map(({ nonce }) => nonce), used)
      if (included.length === used - first && (rows.length === 0 || lane.next_nonce === used))
        continue
      const text = `${laneOf(lane)}: the chain has used ${used} nonces, rows begin at ${first} and
  have ${included.length} as included, the next is ${lane.next_nonce}`
      findings.push({ kind: 'mismatch', text })
    }
  return findings
}

function laneOf({ network, relayer }: { network: string; relayer: string }): string {
  return `${network} ${relayer.toLowerCase()}`
}

async function countOf(read: Read, sql: string): Promise<number> {
  return Number((await read<{ n: number }>(sql))[0]?.n ?? 0)
}
