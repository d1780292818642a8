import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { type PostgresProxy, startPostgresProxy } from '../soak/postgres-proxy'
import { askedOf } from './buyer'
import { startCluster } from './postgres'
import { main } from './program'
import { startTap } from './settlement'
import { configText, startNetworks, startUpstream, x402Usdc } from './target'
import { startVersion, type Version } from './versions'
import { until } from './world'

/** A process of the program, with its own way to PostgreSQL and to the chain of its sales. */
export type Gateway = Version & { proxy: PostgresProxy; tap: ReturnType<typeof startTap> }

const keys = [account(0), account(9)]
const target = '/m/a/get'

/** Processes over one PostgreSQL, which sell on the same two chains. */
export async function startProcesses() {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-processes-'))
  const upstream = startUpstream()
  const settings = { fsync: 'on', full_page_writes: 'on' }
  const [server, [usdc, usdg]] = await Promise.all([
    startCluster({ tcp: true, settings }),
    startNetworks(),
  ])
  await server.run('CREATE DATABASE turnpike')
  for (const { chain } of [usdc, usdg])
    for (const { address } of keys)
      await chain.rpc('anvil_setBalance', [address, '0x8ac7230489e80000'])
  const undo: (() => unknown)[] = []
  let started = 0
  return {
    upstream,
    usdc,
    sql: (statement: string) => server.run(statement, 'turnpike'),
    /** Starts a gateway; resolves when it sells. */
    async start(args: readonly string[] = []): Promise<Gateway> {
      const proxy = await startPostgresProxy(server.port)
      const tap = startTap(usdc.chain.url)
      undo.push(proxy.stop, tap.stop)
      const version = await startVersion(main, {
        directory: join(directory, String(++started)),
        args,
        text: configText({ usdc: tap.url, usdg: usdg.tap.url, upstream: upstream.url }),
        env: {
          DATABASE_URL: `postgres://postgres@127.0.0.1:${proxy.port}/turnpike?sslmode=disable`,
          RELAYER_KEYS: keys.map(({ privateKey }) => privateKey).join(),
          CHALLENGE_SECRETS: '11'.repeat(32),
          RECEIPT_KEY: '22'.repeat(32),
          ADMIN_TOKEN: 'an-admin-token-of-mine',
        },
      })
      undo.push(() => {
        version.signal('SIGKILL')
        return version.stop()
      })
      await until('the gateway sells', () => isReady(version))
      return { ...version, proxy, tap }
    },
    /** Headers that pay for a request by an offer of the gateway. */
    sign: async (gateway: Gateway, buyer: number) =>
      x402Usdc.pay(await askedOf(await request(gateway)), account(buyer).local()),
    async stop() {
      for (const each of undo.toReversed()) await each()
      upstream.stop()
      await Promise.all([usdc.stop(), usdg.stop(), server.stop()])
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

export function request({ url }: Version, headers: Record<string, string> = {}) {
  // A connection of its own: a kept one may end together with the process.
  const init = { headers: { ...headers, connection: 'close' }, keepalive: false }
  return fetch(url + target, init)
}

export async function isReady({ url }: Version): Promise<boolean> {
  return (await fetch(`${url}/readyz`)).status === 200
}
