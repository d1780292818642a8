import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import { askedOf } from '../harness/buyer'
import { outcomeOf } from '../harness/outcome'
import { dropDatabase, durableDatabase, hasPostgres } from '../harness/postgres'
import { main } from '../harness/program'
import { networkOf, startNetwork } from '../harness/settlement'
import { postgresSql } from '../harness/sql'
import { configText, price, seller, startUpstream, x402Usdc } from '../harness/target'
import {
  laterMigration,
  laterVersion,
  removeVersion,
  startVersion,
  type Version,
} from '../harness/versions'
import { until } from '../harness/world'

/** Two versions of the program over one database, one after the other, while buyers pay. */

type Network = Awaited<ReturnType<typeof startNetwork>>
const keys = [account(0), account(9)]
let directory: string
let later: string
let url: string
let usdc: Network
let usdg: Network
let upstream: ReturnType<typeof startUpstream>
beforeAll(async () => {
  if (!hasPostgres) return
  directory = mkdtempSync(join(tmpdir(), 'turnpike-versions-'))
  later = laterVersion()
  upstream = startUpstream()
  ;[url, usdc, usdg] = await Promise.all([
    durableDatabase(),
    startNetwork('usdc'),
    startNetwork('usdg'),
  ])
  for (const { chain } of [usdc, usdg])
    for (const { address } of keys)
      await chain.rpc('anvil_setBalance', [address, '0x8ac7230489e80000'])
})
afterAll(async () => {
  if (!hasPostgres) return
  upstream?.stop()
  await Promise.all([usdc?.stop(), usdg?.stop()])
  if (url !== undefined) await dropDatabase(url)
  if (later !== undefined) removeVersion(later)
  rmSync(directory, { recursive: true, force: true })
})

function start(path: string, name: string): Promise<Version> {
  const urls = { usdc: usdc.tap.url, usdg: usdg.tap.url, upstream: upstream.url }
  // The buyers pay as fast as they can, which the usual budget of a day does not cover.
  const budget = `gas_per_day_wei = { gateway = "${10n ** 18n}" }`
  const text = configText(urls)
    .replace('stop_seconds = 1', 'stop_seconds = 60')
    .replaceAll('rpc_urls =', `${budget}\nrpc_urls =`)
  return startVersion(path, {
    directory: join(directory, name),
    text,
    env: {
      DATABASE_URL: url,
      RELAYER_KEYS: keys.map(({ privateKey }) => privateKey).join(),
      CHALLENGE_SECRETS: '11'.repeat(32),
      RECEIPT_KEY: '22'.repeat(32),
      ADMIN_TOKEN: 'an-admin-token-of-mine',
    },
  })
}

const isReady = async ({ url }: Version) => (await fetch(`${url}/readyz`)).status === 200

/** Sends a request to the present gateway, or to its successor when the first no longer listens. */
async function sendToPresent(gateway: () => Version, target: string, headers = {}) {
  for (;;) {
    const { url } = gateway()
    try {
      // A connection of its own: a kept one may end together with the process.
      const init = { headers: { ...headers, connection: 'close' }, keepalive: false }
      return { url, response: await fetch(url + target, init) }
    } catch (error) {
      if (gateway().url === url) throw error
    }
  }
}

/** Buyers that pay one request after the other. */
function startBuyers(gateway: () => Version) {
  const paid = new Map<string, number>()
  const bad: unknown[] = []
  let isOver = false
  const buy = async (index: number) => {
    while (!isOver) {
      const target = `/m/a/get?buyer=${index}`
      const asked = await askedOf((await sendToPresent(gateway, target)).response)
      const headers = await x402Usdc.pay(asked, account(index).local())
      const { url: own, response } = await sendToPresent(gateway, target, headers)
      const text = await response.text()
      if (response.status === 200) paid.set(own, (paid.get(own) ?? 0) + 1)
      else bad.push([own, response.status, text])
    }
  }
  const running = Promise.all([1, 2, 3, 4].map(buy))
  return {
    bad,
    paidAt: ({ url }: Version) => paid.get(url) ?? 0,
    total: () => [...paid.values()].reduce((sum, each) => sum + each, 0),
    async end() {
      isOver = true
      await running
    },
  }
}

describe.skipIf(!hasPostgres)('a rolling upgrade', () => {
  test('a later version takes over while buyers pay, and nothing is refused or lost', async () => {
    const token = networkOf(usdc.chain.url, 'usdc').asset.address
    const held = await balanceOf(usdc.chain, token, seller)
    const first = await start(main, 'first')
    const versions = [first]
    const sql = postgresSql(url)
    const count = (text: string) => Number(sql.query<{ n: string }>(text).get()?.n)
    let current = first
    try {
      await until('the first is ready', () => isReady(first))
      const buyers = startBuyers(() => current)
      await until('the first sells', () => buyers.paidAt(first) > 8)
      const second = await start(later, 'second')
      versions.push(second)
      // It has changed the schema, and both serve.
      await until('the second is ready', () => isReady(second))
      const before = buyers.paidAt(first)
      await until('the first sells in the new schema', () => buyers.paidAt(first) > before + 8)
      // As a balancer does: nothing new is led to a process that is to be stopped.
      current = second
      expect(await first.stop()).toBe(0)
      await until('the second sells alone', () => buyers.paidAt(second) > 8)
      await buyers.end()

      expect(buyers.bad).toEqual([])
      expect(await balanceOf(usdc.chain, token, seller)).toBe(held + price * BigInt(buyers.total()))
      const delivered = "state = 'confirmed' AND delivery = 'delivered' AND attempts = 1"
      await until(
        'every delivery is recorded',
        () => count(`SELECT count(*) n FROM payments WHERE ${delivered}`) === buyers.total(),
      )
      expect(count('SELECT count(*) n FROM payments')).toBe(buyers.total())
      expect(count("SELECT count(*) n FROM payments WHERE later = 'added'")).toBeGreaterThan(8)
      expect(count("SELECT count(*) n FROM pg_namespace WHERE nspname LIKE 'turnpike\\_%'")).toBe(2)
      expect(upstream.requests).toHaveLength(buyers.total())

      expect(await outcomeOf(start(main, 'again'))).toThrow(laterMigration)
      expect(await isReady(second)).toBe(true)
    } finally {
      sql.close()
      for (const each of versions) await each.stop()
    }
  })
})
