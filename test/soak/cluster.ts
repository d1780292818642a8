import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Client } from 'pg'
import { type Balancer, startBalancer } from './balancer'
import { createByChannel } from './by-channel'
import { auditCluster, type Read, unsettled } from './cluster-audit'
import { createClusterFaults, disturbancesOf, type Member, takeAim } from './cluster-faults'
import { createComeback } from './comeback'
import { configurationOf } from './configuration'
import { type Ended, finish, sumOf } from './finish'
import { createMembers } from './members'
import { auditOverlaps } from './overlaps'
import { startPair } from './pair'
import { createPayers, type Payers } from './payers'
import { createDirectory, freePort, keysOf } from './program'
import { createRandom, type Random } from './random'
import { storeOf } from './rows'
import { type SendProxies, startSendProxies } from './send-proxy'
import { createSettleCalls, facilitatorTable } from './settle-calls'
import { clusterRelayers, refunder, type Setup, startSetup } from './setup'
import { createExplain } from './trail'
import { startUpstream, type Upstream } from './upstream'

/**
 * Disturbs three gateways over one PostgreSQL while 32 payers and buyers with channels buy through a load
 * balancer, and resource servers settle each authorization at all gateways at once: kills, stops, also at a
 * send, lost connections, also inside commits, cancelled statements, crashes of PostgreSQL, absences and
 * promotions of its standby. Then it proves that no payment was lost or doubled, no answer was given without
 * one, and channels were charged, claimed and refunded what their answers cost. A seed repeats the random
 * choices, not the timing.
 */

const { values } = parseArgs({
  options: { faults: { type: 'string', default: '200' }, seed: { type: 'string' } },
})
const faults = Number(values.faults)
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
if (!Number.isSafeInteger(faults) || faults < 0) throw new Error('--faults wants a number')

/** Wallets for trials. */
const freshCount = Math.min(1_000, 40 + 4 * faults)
/** Wallets for channels. */
const channelCount = Math.min(300, 12 + faults)
const gateways = 3
const database = 'turnpike'
/**
 * Longest time after the last disturbance until takeovers have ended and old results of commits are
 * deleted, ms.
 */
const settleMaxMs = 180_000

const [int8, int4, int2, float8] = [20, 23, 21, 701]

process.exitCode = await soak()

async function soak(): Promise<number> {
  const startedAt = Date.now()
  const random = createRandom(seed)
  process.stdout.write(`soak:cluster --faults ${faults} --seed ${seed}\n`)
  const undo: (() => unknown)[] = []
  try {
    const setup = await startSetup(seed, freshCount, channelCount)
    undo.push(setup.stop)
    const upstream = await startUpstream(random.fork('upstream'), gateways)
    undo.push(upstream.stop)
    const postgres = await startPair()
    undo.push(postgres.stop)
    await postgres.run(`CREATE DATABASE ${database}`)
    const read: Read = (sql) => readRows(postgres.url(database), sql)
    const port = await freePort()
    const directory = createDirectory()
    process.stdout.write(`${directory}\n`)
    const nodes = setup.sites.map(({ chain }) => chain.url)
    const sends = Array.from({ length: gateways }, () => startSendProxies(nodes))
    for (const each of sends) undo.push(each.stop)
    const keys = random.fork('keys')
    const relayers = clusterRelayers.slice(0, keys.between(3, 4))
    const members = await createMembers({
      ...{ gateways, postgres, database, directory },
      env: envOf(keys, relayers),
      store: storeOf(read),
      text: textOf({ setup, upstream, sends, baseUrl: `http://localhost:${port}` }),
    })
    undo.push(members.stop)
    const urls = members.all.map(({ program }) => program.url)
    const ports = urls.map((url) => Number(new URL(url).port))
    const balancer = await startBalancer(port, ports)
    undo.push(balancer.stop)
    const payers = createPayers({ setup, url: balancer.url, random, pauseMaxMs: 300 })
    const calls = await createSettleCalls({ setup, urls, relayers, random: random.fork('settle') })
    const draws = random.fork('faults')
    const aim = () => takeAim(upstream, draws)
    const played = createClusterFaults({
      ...{ members: members.all, sends, postgres, random: draws, aim },
    })
    const disturbances = () => [
      ...disturbancesOf(played.played),
      ...members.fenced,
      ...balancer.gone,
    ]
    const isDisturbed = (from: number, until: number) =>
      disturbances().some((each) => each.from <= until && each.until >= from)
    const shared = {
      ...{ setup, upstream, random, url: balancer.url, pauseMaxMs: 300, isDisturbed },
      hasLeft: (serial: string) => isLeft(balancer, serial),
    }
    const byChannel = createByChannel({ ...shared, store: storeOf(read) })
    const comeback = createComeback({
      ...shared,
      operator: {
        ...{ store: storeOf(read), directory, random: random.fork('operator'), change: read },
        executable: join(directory, 'turnpike'),
        data: ['--config', join(directory, 'gateway-0', 'merchants.toml')],
        env: () => ({
          ...{ REFUND_KEY: refunder.privateKey, DATABASE_URL: postgres.url(database) },
        }),
      },
      ...{ isSteady: true, startedLast: () => 0 },
    })
    await members.start()
    payers.start()
    calls.start()
    comeback.start()
    byChannel.start()
    await played.play(faults)
    const noteLeft = () => markLeft(payers, balancer)
    const program = together(members.all, {
      directory,
      read,
      disturbedAt: played.disturbedAt,
      noteLeft,
    })
    return await finish({
      setup,
      upstream,
      program,
      payers: {
        purchases: payers.purchases,
        async finish(ms) {
          await Promise.all([payers, calls, comeback, byChannel].map((each) => each.finish(ms)))
          // At its start a gateway claims and sweeps what is left.
          for (const { program } of members.all) await program.stop()
          await members.start()
        },
      },
      moved: async () =>
        sumOf(await calls.moved(), await comeback.moved(), await byChannel.moved()),
      missing: byChannel.missing,
      disturbances,
      title: `seed ${seed}`,
      more: async () => [
        ...(await auditCluster(setup, read)),
        ...(await calls.audit(read)),
        ...(await comeback.audit()),
        ...(await byChannel.audit()),
        ...auditOverlaps(upstream.calls, disturbances()),
      ],
      explain: createExplain({
        logs: members.all.map(({ program: each }) => join(each.directory, 'program.log')),
        played: played.played,
        trail: balancer.trail,
      }),
      figures: () => [
        ['seconds', ((Date.now() - startedAt) / 1000).toFixed(1)],
        ...[...played.counts, ...members.ends, ...balancer.counts].sort(),
        ...calls.figures(),
        ...comeback.figures(),
        ...byChannel.figures(),
      ],
    })
  } finally {
    for (const each of undo.toReversed()) await each()
  }
}

type Shared = {
  setup: Setup
  upstream: Upstream
  sends: readonly SendProxies[]
  baseUrl: string
}

/** The configurations of the gateways, which differ in the addresses of the upstream and the nodes. */
function textOf({ setup, upstream, sends, baseUrl }: Shared) {
  return (index: number, port: number) =>
    configurationOf({
      setup,
      upstream: upstream.urls[index] ?? upstream.url,
      rpcUrlsOf: ({ chain }) => [sends[index]?.urlOf(chain.url) ?? chain.url],
      facilitator: facilitatorTable,
      club: true,
      channels: true,
      settleWaitSeconds: 25,
      replaceAfterSeconds: 20,
      baseUrl,
    })(port)
}

/** The gateway takes the end of the balancer's connection for the buyer's. */
function markLeft({ purchases }: Payers, balancer: Balancer): void {
  for (const { serial, byUse } of purchases)
    if (byUse && isLeft(balancer, serial)) byUse.hasLeft = true
}

function isLeft({ trail }: Balancer, serial: string): boolean {
  return trail.get(serial)?.some(({ did }) => did === 'left') ?? false
}

/** The same for all gateways. */
function envOf(random: Random, keys: typeof clusterRelayers): Record<string, string> {
  const secret = () => random.bytes32().slice(2)
  return {
    RELAYER_KEYS: keysOf(keys),
    CHALLENGE_SECRETS: secret(),
    RECEIPT_KEY: secret(),
    RECEIVER_AUTHORIZER_KEY: secret(),
    ADMIN_TOKEN: secret(),
  }
}

type Disturbed = { read: Read; disturbedAt: readonly number[]; noteLeft: () => void }

/** All gateways as one, for the audit. */
function together(
  members: readonly Member[],
  { directory, read, disturbedAt, noteLeft }: Pick<Ended, 'directory'> & Disturbed,
): Ended {
  const programs = members.map(({ program }) => program)
  const faults: string[] = []
  const [first] = programs
  if (first === undefined) throw new Error('there is no gateway')
  return {
    store: first.store,
    directory,
    faults,
    killedAt: disturbedAt,
    async stop() {
      noteLeft()
      const deadline = Date.now() + settleMaxMs
      let wrong = await unsettled(read, members.length)
      while (wrong !== undefined && Date.now() < deadline) {
        await Bun.sleep(500)
        wrong = await unsettled(read, members.length)
      }
      if (wrong !== undefined) faults.push(wrong)
      // One that was fenced may be starting again.
      await Promise.all(programs.map((program) => program.listening()))
      await Promise.all(programs.map((program) => program.stop()))
      for (const [index, program] of programs.entries())
        faults.push(...program.faults.map((text) => `gateway ${index}: ${text}`))
    },
  }
}

async function readRows<Row>(url: string, sql: string): Promise<readonly Row[]> {
  const client = new Client({
    connectionString: url,
    types: {
      getTypeParser: (oid: number) => (value: string) => decoded(oid, value),
    },
  })
  await client.connect()
  try {
    return (await client.query(sql)).rows as Row[]
  } finally {
    await client.end()
  }
}

/** Numbers as SQLite gives them. */
function decoded(oid: number, value: string): string | number {
  return [int8, int4, int2, float8].includes(oid) ? Number(value) : value
}
