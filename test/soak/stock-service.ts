import { Database } from 'bun:sqlite'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import type { Chain } from '../../src/demo/chains'
import type * as Network from '../../src/protocol/Network'
import { postgresSql, type Sql, sqliteSql } from '../harness/sql'
import { createStockProgram, stockConfiguration } from '../harness/stock-serve'
import { startBalancer } from './balancer'
import { auditCluster, type Read, unsettled } from './cluster-audit'
import { createClusterFaults } from './cluster-faults'
import { createMembers } from './members'
import { startPair } from './pair'
import { createDirectory, freePort, keysOf } from './program'
import type { Random } from './random'
import { storeOf } from './rows'

/** What sells the stocks: one program, or several over one PostgreSQL. */
export type StockService = {
  /** Of the newest start. */
  readonly url: string
  start(): Promise<void>
  /** Kills one program and starts it; of several, plays a fault at each, to its end. */
  disturb(): Promise<void>
  /** How often each fault was played. */
  counts: ReadonlyMap<string, number>
  /** Kills everything, and starts it again. */
  restart(): Promise<void>
  /** Ends it in order. Resolves with what is wrong then. */
  end(): Promise<readonly string[]>
  /** Uses the rows of the present database. */
  use<T>(work: (sql: Sql) => T): T
  /** Kills what still runs. The logs of several are kept where something is wrong. */
  stop(isWrong: boolean): Promise<void>
}

export async function startStockProgram(rpcUrl: string): Promise<StockService> {
  const program = await createStockProgram({ rpcUrl })
  const counts = new Map<string, number>()
  const restart = async () => {
    await program.kill()
    await program.start()
    counts.set('kill', (counts.get('kill') ?? 0) + 1)
  }
  return {
    counts,
    get url() {
      return program.url
    },
    start: program.start,
    ...{ disturb: restart, restart },
    end: async () => [],
    use(work) {
      const database = new Database(join(program.dataDir, 'turnpike.sqlite'))
      try {
        database.run('PRAGMA busy_timeout = 5000')
        return work(sqliteSql(database))
      } finally {
        database.close()
      }
    },
    stop: program.remove,
  }
}

type ClusterOptions = {
  chain: Chain
  /** Of the chain. */
  id: Network.Id
  rpcUrl: string
  gateways: number
  random: Random
}

const database = 'turnpike'
/** Free of other duties on this chain; the first one is the desk. */
const keys = [0, 6, 4, 5].map(account)
/** Takeover and the results of old commits after the last fault, ms. */
const settleMaxMs = 180_000

export async function startStockCluster(options: ClusterOptions): Promise<StockService> {
  const { chain, id, rpcUrl, gateways, random } = options
  for (const { address } of keys)
    await chain.rpc('anvil_setBalance', [address, '0x3635c9adc5dea00000'])
  const postgres = await startPair()
  await postgres.run(`CREATE DATABASE ${database}`)
  const sql = () => postgresSql(postgres.url(database))
  const read: Read = async <Row>(text: string) => sql().query<Row>(text).all()
  const text = await stockConfiguration(rpcUrl)
  const directory = createDirectory()
  const members = await createMembers({
    ...{ gateways, postgres, database, directory, store: storeOf(read) },
    env: {
      DESK_KEY: account(0).privateKey,
      RELAYER_KEYS: keysOf(keys),
      CHALLENGE_SECRETS: random.bytes32().slice(2),
      RECEIPT_KEY: random.bytes32().slice(2),
      ADMIN_TOKEN: random.bytes32().slice(2),
    },
    text: (_, port) => text.replace('"127.0.0.1:0"', `"127.0.0.1:${port}"`),
  })
  const programs = members.all.map(({ program }) => program)
  const ports = programs.map(({ url }) => Number(new URL(url).port))
  const balancer = await startBalancer(await freePort(), ports)
  const faults = createClusterFaults({
    ...{ members: members.all, postgres, random },
    aim: async () => undefined,
  })
  return {
    url: balancer.url,
    start: members.start,
    counts: faults.counts,
    disturb: () => faults.play(gateways),
    async restart() {
      await Promise.all(programs.map((program) => program.kill()))
      await members.start()
    },
    async end() {
      const deadline = Date.now() + settleMaxMs
      let wrong = await unsettled(read, gateways)
      while (wrong !== undefined && Date.now() < deadline) {
        await Bun.sleep(500)
        wrong = await unsettled(read, gateways)
      }
      await Promise.all(programs.map((program) => program.stop()))
      const findings = await auditCluster({ sites: [{ id, chain }] }, read)
      return [
        ...(wrong === undefined ? [] : [wrong]),
        ...programs.flatMap((program) => program.faults),
        ...findings.map(({ text: said }) => said),
      ]
    },
    use: (work) => work(sql()),
    async stop(isWrong) {
      balancer.stop()
      await members.stop()
      await postgres.stop()
      if (isWrong) process.stdout.write(`the logs are in ${directory}\n`)
      else rmSync(directory, { recursive: true, force: true })
    },
  }
}
