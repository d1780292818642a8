import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Client } from 'pg'
import { type Cluster, startCluster } from '../harness/postgres'
import { type Balancer, startBalancer } from './balancer'
import { auditCluster, type Read, unsettled } from './clusteraudit'
import { createClusterFaults, type Member } from './clusterfaults'
import { type Ended, finish } from './finish'
import { createPayers, type Payers } from './payers'
import { startPostgresProxy } from './pgproxy'
import { copyTo, createDirectory, createProgram, freePort, keysOf } from './program'
import { createRandom, type Random } from './random'
import { storeOf } from './rows'
import { clusterRelayers, type Setup, startSetup } from './setup'
import { createExplain } from './trail'
import { startUpstream, type Upstream } from './upstream'

/**
 * Disturbs three gateways over one PostgreSQL while 32 payers buy through a load balancer: kills,
 * stops, lost connections, crashes of PostgreSQL. Then it proves that no payment was lost or doubled
 * and no answer was given without one. A seed repeats the random choices, not the timing.
 */

const { values } = parseArgs({
  options: { faults: { type: 'string', default: '200' }, seed: { type: 'string' } },
})
const faults = Number(values.faults)
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
if (!Number.isSafeInteger(faults) || faults < 0) throw new Error('--faults wants a number')

const gateways = 3
const database = 'turnpike'
/**
 * Longest time after the last disturbance until takeovers have ended and old results of commits are
 * deleted, ms.
 */
const settleMaxMs = 180_000
/** A gateway that the others took for dead. */
const fencedCode = 70
/** By SIGTERM, before the program handles it. */
const terminatedCode = 143

const [int8, int4, int2, float8] = [20, 23, 21, 701]

process.exitCode = await soak()

async function soak(): Promise<number> {
  const startedAt = Date.now()
  const random = createRandom(seed)
  process.stdout.write(`soak:cluster --faults ${faults} --seed ${seed}\n`)
  const undo: (() => unknown)[] = []
  try {
    const setup = await startSetup(seed)
    undo.push(setup.stop)
    const upstream = await startUpstream(random.fork('upstream'))
    undo.push(upstream.stop)
    const postgres = await startCluster({
      tcp: true,
      settings: { fsync: 'on', full_page_writes: 'on' },
    })
    undo.push(postgres.stop)
    await postgres.run(`CREATE DATABASE ${database}`)
    const read: Read = (sql) => readRows(postgres.url(database), sql)
    const ends = new Map<string, number>()
    const port = await freePort()
    const directory = createDirectory()
    process.stdout.write(`${directory}\n`)
    const members = await createMembers({
      ...{ setup, upstream, postgres, read, random, ends, port, directory },
    })
    undo.push(() => Promise.all(members.map(({ program }) => program.end())))
    for (const { proxy } of members) undo.push(proxy.stop)
    const ports = members.map(({ program }) => Number(new URL(program.url).port))
    const balancer = await startBalancer(port, ports)
    undo.push(balancer.stop)
    const payers = createPayers({ setup, url: balancer.url, random, pauseMaxMs: 300 })
    const played = createClusterFaults({
      ...{ members, postgres, upstream, random: random.fork('faults') },
    })
    for (const { program } of members) {
      program.start()
      await program.listening()
    }
    payers.start()
    await played.play(faults)
    const noteLeft = () => markLeft(payers, balancer)
    const program = together(members, {
      directory,
      read,
      disturbedAt: played.disturbedAt,
      noteLeft,
    })
    return await finish({
      setup,
      upstream,
      program,
      payers,
      title: `seed ${seed}`,
      more: () => auditCluster(setup, read),
      explain: createExplain({
        logs: members.map(({ program: each }) => join(each.directory, 'program.log')),
        played: played.played,
        trail: balancer.trail,
      }),
      figures: () => [
        ['seconds', ((Date.now() - startedAt) / 1000).toFixed(1)],
        ...[...played.counts, ...ends, ...balancer.counts].sort(),
      ],
    })
  } finally {
    for (const each of undo.toReversed()) await each()
  }
}

/** The gateway takes the end of the balancer's connection for the buyer's. */
function markLeft({ purchases }: Payers, { trail }: Balancer): void {
  for (const { serial, byUse } of purchases)
    if (byUse && trail.get(serial)?.some(({ did }) => did === 'left')) byUse.hasLeft = true
}

type Parts = {
  setup: Setup
  upstream: Upstream
  postgres: Cluster
  read: Read
  random: Random
  /** How gateways ended by themselves, and how often. */
  ends: Map<string, number>
  port: number
  directory: string
}

async function createMembers(parts: Parts): Promise<readonly Member[]> {
  const { setup, upstream, postgres, read, ends } = parts
  const random = parts.random.fork('keys')
  const keys = clusterRelayers.slice(0, random.between(3, 4))
  const secret = () => random.bytes32().slice(2)
  const shared = {
    RELAYER_KEYS: keysOf(keys),
    CHALLENGE_SECRETS: secret(),
    RECEIPT_KEY: secret(),
    ADMIN_TOKEN: secret(),
  }
  const mayEnd = (code: number, said: string) => {
    const reason = endOf(code, said)
    if (reason === undefined) return false
    ends.set(`ended: ${reason}`, (ends.get(`ended: ${reason}`) ?? 0) + 1)
    return true
  }
  const executable = copyTo(parts.directory)
  const members: Member[] = []
  for (let index = 0; index < gateways; index++) {
    const directory = join(parts.directory, `gateway-${index}`)
    mkdirSync(directory)
    const proxy = await startPostgresProxy(postgres.port)
    const url = `postgres://postgres@127.0.0.1:${proxy.port}/${database}?sslmode=disable`
    const program = await createProgram({
      setup,
      upstream: upstream.url,
      rpcUrlsOf: ({ chain }) => [chain.url],
      settleWaitSeconds: 25,
      replaceAfterSeconds: 20,
      gateway: {
        directory,
        executable,
        baseUrl: `http://localhost:${parts.port}`,
        env: { ...shared, DATABASE_URL: url },
        store: storeOf(read),
        mayEnd,
      },
    })
    members.push({ program, proxy, isBusy: false })
  }
  return members
}

/** Why a gateway ended, when it may end so; undefined for any other end. */
function endOf(code: number, said: string): string | undefined {
  if (code === fencedCode) return 'fenced'
  if (code === terminatedCode && !said.includes('listens on')) return 'SIGTERM during its start'
  // A start without a database.
  const [, reason] = /turnpike: PostgreSQL at \S+ (.{0,60})/.exec(said) ?? []
  return reason
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
