import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Member } from './cluster-faults'
import type { Disturbance } from './overlaps'
import type { Pair } from './pair'
import { startPostgresProxies } from './postgres-proxy'
import { copyTo, createProgram } from './program'
import type { Store } from './rows'

export type Members = {
  all: readonly Member[]
  /** Why gateways ended by themselves, and how often. */
  ends: ReadonlyMap<string, number>
  /** When gateways were taken for dead. */
  fenced: readonly Disturbance[]
  /** Starts all, one after the other. */
  start(): Promise<void>
  /** Kills all. */
  stop(): Promise<void>
}

export type MembersOptions = {
  gateways: number
  postgres: Pair
  /** Name of the database, which exists. */
  database: string
  /** The gateways write their data and logs into it. */
  directory: string
  env: Readonly<Record<string, string>>
  store: Store
  /** Text of merchants.toml of the gateway with this index. */
  text(index: number, port: number): string
}

/** A gateway that the others took for dead. */
const fencedCode = 70
/** One that ends so was taken for dead at most this long before, ms. */
const fencedMs = 20_000
/** The exit code after SIGTERM, before the program handles it. */
const terminatedCode = 143

/** Several gateways over one database, each with its own way to both of its servers. */
export async function createMembers(options: MembersOptions): Promise<Members> {
  const { gateways, postgres, database, env, store } = options
  const ends = new Map<string, number>()
  const fenced: Disturbance[] = []
  const mayEnd = (gateway: number) => (code: number, said: string) => {
    const reason = endOf(code, said)
    if (reason === undefined) return false
    const until = Date.now()
    if (code === fencedCode) fenced.push({ gateway, from: until - fencedMs, until })
    ends.set(`ended: ${reason}`, (ends.get(`ended: ${reason}`) ?? 0) + 1)
    return true
  }
  const executable = copyTo(options.directory)
  const all: Member[] = []
  for (let index = 0; index < gateways; index++) {
    const directory = join(options.directory, `gateway-${index}`)
    mkdirSync(directory)
    const proxy = await startPostgresProxies(postgres.ports)
    const hosts = proxy.ports.map((each) => `127.0.0.1:${each}`).join()
    const url = `postgres://postgres@${hosts}/${database}?sslmode=disable`
    const program = await createProgram({
      text: (port) => options.text(index, port),
      gateway: {
        ...{ directory, executable, store },
        env: { ...env, DATABASE_URL: url },
        mayEnd: mayEnd(index),
      },
    })
    all.push({ program, proxy, isBusy: false })
  }
  return {
    ...{ all, ends, fenced },
    async start() {
      for (const { program } of all) {
        program.start()
        await program.listening()
      }
    },
    async stop() {
      await Promise.all(all.map(({ program }) => program.end()))
      for (const { proxy } of all) proxy.stop()
    },
  }
}

/** Why a gateway ended, when it may end so; undefined for any other end. */
function endOf(code: number, said: string): string | undefined {
  if (code === fencedCode) return 'fenced'
  if (code === terminatedCode && !said.includes('listens on')) return 'SIGTERM during its start'
  // A start without a database.
  const [, reason] = /turnpike: PostgreSQL at \S+ (.{0,60})/.exec(said) ?? []
  return reason
}
