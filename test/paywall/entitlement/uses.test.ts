import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { EVMSigner } from '@x402/extensions/sign-in-with-x'
import { type Hex, numberToHex } from 'viem'
import { account } from '../../../src/demo/accounts'
import { buy, openConnection, type Shop, startShop, untilEnded } from '../../harness/shop'
import { signedIn, signInHeader, walletOf } from '../../harness/sign-in'
import { age, freshWallet, setTokens } from '../../harness/sponsor'
import { isPostgres } from '../../harness/test-ledger'
import type { Arrived, Reply } from '../../harness/upstream'
import { SmartWallet } from '../../harness/wallets'
import { until } from '../../harness/world'

/** What a wallet gets without a further payment, and what a use that fails costs it. */

const house = `
[[merchants]]
slug = "house"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
[[merchants.routes]]
path = "/all"
methods = ["GET", "POST"]
price = "0.005"
again = "1h"
again_max = 2
TRIAL
pass = { price = "0.05", period = "24h", requests = 2 }
[[merchants.routes.params]]
name = "n"
schema = { type = "integer" }

[[merchants]]
slug = "narrow"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
concurrency_max = 1
[[merchants.routes]]
path = "/one"
price = "0.005"
pass = { price = "0.05", period = "24h", requests = 9 }
[[merchants.routes]]
path = "/two"
price = "0.005"
again = "1h"
again_max = 1
`

const trial =
  'trial = { requests = 2, per = "wallet", total_per_day = 100, min_balance = "0.10", min_balance_age_blocks = 3 }'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) => `${text}${house}`.replaceAll('TRIAL', trial),
  })
})
afterAll(() => shop?.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  for (const tap of Object.values(shop.taps)) tap.intercept = undefined
})

const base = 'eip155:8453'
const x402 = { scheme: 'x402-eip3009' } as const
type Wallet = ReturnType<typeof freshWallet>

const at = (path: string) => `${shop.url}/m/${path}`

/** A wallet that was never used, with a balance that is old enough for a trial. */
async function walletWith(atomic: bigint): Promise<Wallet> {
  const made = freshWallet()
  const chain = shop.chains[base]
  const asset = shop.config.networks.find(({ id }) => id === base)?.asset.address
  if (chain === undefined || asset === undefined) throw new Error(`no ${base}`)
  await setTokens(chain, asset, [made.address], atomic)
  await age(chain, 4)
  return made
}

/** What `Payment-Entitlement` says. */
function given(response: Response) {
  const text = response.headers.get('payment-entitlement') ?? ''
  const pattern = /^kind=(\w+), remaining=(\d+)(?:, until="(\S+)")?$/
  const [, kind, remaining, until] = pattern.exec(text) ?? []
  const { status } = response
  return { status, kind, remaining: Number(remaining), until: until && Date.parse(until) }
}

/** The header that signs in for a path. */
const signed = async (signer: Wallet, path: string) =>
  signInHeader(await signedIn(at(path), { signer, network: base }))
const send = (path: string, headers: Record<string, string>) => fetch(at(path), { headers })
/** Requests a path of a wallet that signs in. */
const use = async (wallet: Wallet, path = 'house/all') => send(path, await signed(wallet, path))

/** What was counted, and what the upstream was asked. */
const books = () => ({
  forwarded: shop.upstream.requests.length,
  counted: rows('SELECT id, uses, attempts FROM entitlements ORDER BY id'),
  uses: rows('SELECT id FROM entitlement_uses ORDER BY id'),
  payments: rows('SELECT id, delivery, attempts FROM payments ORDER BY id'),
})

/** Expects a problem, and that nothing is counted for it. */
async function refused(path: string, headers: Record<string, string>, expected: object) {
  const before = books()
  expect(await problemOf(await send(path, headers))).toMatchObject(expected)
  expect(books()).toEqual(before)
}

async function bought(wallet: Wallet, path = 'house/all', headers = {}): Promise<Response> {
  const response = await buy(at(path), { ...x402, signer: wallet }, headers)
  expect(response.status).toBe(200)
  await untilEnded(shop)
  return response
}

async function problemOf(response: Response): Promise<Record<string, unknown>> {
  return { status: response.status, ...((await response.json()) as object) }
}

const rows = (sql: string) => shop.rows(sql)
const running = () => rows("SELECT id FROM entitlement_uses WHERE state = 'running'").length
const untilBooked = () => until('no use is running', () => running() === 0)
const usesOf = (kind: string) =>
  rows(
    `SELECT uses, attempts FROM entitlements WHERE kind = '${kind}' ORDER BY created_at DESC, id DESC`,
  )[0]

test('a wallet uses its paid answer first, then the pass that ends first, then its trial', async () => {
  const wallet = await walletWith(1_000_000n)
  const ends: number[] = []
  for (const later of [0, 60_000]) {
    shop.advance(later)
    const response = await bought(wallet, 'house/all/pass')
    const { pass, next } = (await response.json()) as {
      pass: Record<string, unknown>
      next: string
    }
    const until = Date.parse(String(pass.until))
    expect(pass).toEqual({
      ...{ route: '/all', url: 'http://localhost:4020/m/house/all', period: 'PT24H' },
      ...{ requests: 2, until: new Date(until).toISOString() },
    })
    expect(next).toContain('SIGN-IN-WITH-X')
    expect(response.headers.get('cache-control')).toBe('private, no-store')
    ends.push(until)
  }
  await bought(wallet)
  const all: ReturnType<typeof given>[] = []
  for (let turn = 0; turn < 8; turn++) {
    const response = await use(wallet)
    all.push(given(response))
    const isPaid = all.at(-1)?.kind === 'again'
    expect(response.headers.has('payment-response')).toBe(isPaid)
    expect(response.headers.has('payment-redeem')).toBe(isPaid)
    expect(response.headers.get('access-control-expose-headers')).toContain('Payment-Entitlement')
  }
  const again = all[0]?.until
  const [first, second] = ends
  expect(all).toEqual(
    (
      [
        ['again', 1, again],
        ['again', 0, again],
        ['pass', 1, first],
        ['pass', 0, first],
        ['pass', 1, second],
        ['pass', 0, second],
        ['trial', 1, undefined],
        ['trial', 0, undefined],
      ] as const
    ).map(([kind, remaining, until]) => ({ status: 200, kind, remaining, until })),
  )
  expect(await problemOf(await use(wallet))).toMatchObject({
    ...{ status: 402, code: 'not-entitled', reason: 'entitlement_spent' },
  })
})

test('a paid answer is fetched again by its token, as often and as long as the route says', async () => {
  const wallet = await walletWith(10_000n)
  const token = (await bought(wallet)).headers.get('payment-redeem') ?? ''
  const fetchAgain = (path = 'house/all') => send(path, { 'payment-redeem': token })
  expect(token).toMatch(/^pay_[0-9a-f]{32}\.[\w-]{43}$/)
  expect(await problemOf(await fetchAgain('house/all?n=1'))).toMatchObject({
    ...{ status: 409, code: 'payment-mismatch' },
  })
  shop.upstream.script = (_, reply) => reply.send(500)
  const failed = await problemOf(await fetchAgain())
  expect(failed).toMatchObject({ status: 502, code: 'upstream-failed', upstreamStatus: 500 })
  expect([failed.redeem, failed.detail]).toEqual([
    undefined,
    expect.stringContaining('send the same token again'),
  ])
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
  for (const remaining of [1, 0]) {
    const response = await fetchAgain()
    expect(given(response)).toMatchObject({ status: 200, kind: 'again', remaining })
    expect(response.headers.get('payment-redeem')).toBe(token)
    expect(response.headers.has('payment-response')).toBe(true)
  }
  // The upstream is asked for the same thing, by the key that it had before.
  const keys = shop.upstream.requests.map(({ headers }) => headers['idempotency-key'])
  expect(keys).toEqual([token.split('.')[0], token.split('.')[0]])
  expect(await problemOf(await fetchAgain())).toMatchObject({
    ...{ status: 410, code: 'redeem-exhausted' },
  })
  const other = (await bought(wallet, 'house/all?n=2')).headers.get('payment-redeem') ?? ''
  shop.advance(60 * 60_000)
  const late = await send('house/all?n=2', { 'payment-redeem': other })
  shop.advance(-60 * 60_000)
  expect([late.status, late.headers.has('payment-entitlement')]).toEqual([410, false])
})

test('the stored answer of a key is repeated, and counts', async () => {
  const wallet = await walletWith(10_000n)
  shop.upstream.script = (_, reply) => reply.send(200, '{"first":true}')
  await bought(wallet, 'house/all', { 'idempotency-key': 'k1' })
  shop.upstream.script = (_, reply) => reply.send(200, '{"first":false}')
  const response = await use(wallet)
  expect(given(response)).toMatchObject({ kind: 'again', remaining: 1 })
  expect(response.headers.get('idempotency-replayed')).toBe('true')
  expect(await response.text()).toBe('{"first":true}')
  // After its last use it is still repeated for the key.
  expect((await use(wallet)).status).toBe(200)
  const token = response.headers.get('payment-redeem') ?? ''
  const headers = { 'payment-redeem': token, 'idempotency-key': 'k1' }
  expect(await (await send('house/all', headers)).text()).toBe('{"first":true}')
  expect((await send('house/all', { 'payment-redeem': token })).status).toBe(410)
})

test('a sign-in continues a payment whose answer failed, and is spent by that', async () => {
  const wallet = await walletWith(10_000n)
  shop.upstream.script = (_, reply) => reply.send(500)
  const failed = await buy(at('house/all'), { ...x402, signer: wallet })
  expect(failed.status).toBe(502)
  shop.upstream.script = undefined
  const headers = await signed(wallet, 'house/all')
  const response = await send('house/all', headers)
  expect([response.status, response.headers.has('payment-response')]).toEqual([200, true])
  expect(response.headers.has('payment-entitlement')).toBe(false)
  await untilEnded(shop)
  const [payment] = rows('SELECT delivery, attempts FROM payments ORDER BY id DESC LIMIT 1')
  expect(payment).toEqual({ delivery: 'delivered', attempts: 2 })
  expect(usesOf('again')).toMatchObject({ uses: 0 })
  await refused('house/all', headers, { status: 402, reason: 'invalid_siwx_nonce' })
})

test.skipIf(isPostgres)(
  'a sign-in whose payment is delivered meanwhile is sent again, and not refused',
  async () => {
    const wallet = await walletWith(10_000n)
    shop.upstream.script = (_, reply) => reply.send(500)
    expect((await buy(at('house/all'), { ...x402, signer: wallet })).status).toBe(502)
    await untilEnded(shop)
    shop.upstream.script = undefined
    const [payment] = rows('SELECT id FROM payments ORDER BY id DESC LIMIT 1')
    shop.db.sqlite.run(`CREATE TRIGGER meanwhile AFTER UPDATE ON entitlement_uses BEGIN
      UPDATE payments SET delivery = 'delivered', delivered_at = 1 WHERE id = '${payment?.id}'; END`)
    const late = await send('house/all', await signed(wallet, 'house/all'))
    shop.db.sqlite.run('DROP TRIGGER meanwhile')
    expect([late.status, ((await late.json()) as { code: string }).code]).toEqual([
      409,
      'payment-in-progress',
    ])
    const again = await send('house/all', await signed(wallet, 'house/all'))
    expect([again.status, again.headers.has('payment-entitlement')]).toEqual([200, true])
  },
)

describe('a use is given back', () => {
  const wallet = account(5).local() as Wallet
  const path = 'house/all?n=7'
  beforeAll(async () => {
    const terms = { ...x402, buyer: 5 }
    expect((await buy(at('house/all/pass'), terms)).status).toBe(200)
  })
  const nothing = async (act: () => Promise<unknown>) => {
    const { uses } = usesOf('pass') ?? {}
    const got = await act()
    await untilBooked()
    expect(usesOf('pass')?.uses).toBe(uses)
    return got
  }

  test('when the upstream fails, before its answer or within it', async () => {
    const scripts: ((request: Arrived, reply: Reply) => void)[] = [
      (_, reply) => reply.send(503),
      (_, reply) => reply.cut(),
      (_, reply) => {
        reply.head(200, { 'content-type': 'application/json' })
        reply.chunk('{"half":')
        setTimeout(reply.cut, 5)
      },
    ]
    for (const script of scripts)
      await nothing(async () => {
        shop.upstream.script = script
        const problem = await problemOf(await use(wallet, path))
        expect(problem).toMatchObject({ status: 502, code: 'upstream-failed' })
        expect(problem.detail).toContain('sign in again')
      })
  })

  test('when its buyer leaves before a byte', async () => {
    await nothing(async () => {
      const reached = Promise.withResolvers<Reply>()
      shop.upstream.script = (_, reply) => reached.resolve(reply)
      const connection = openConnection(at(path), await signed(wallet, path))
      const reply = await reached.promise
      await connection.leave()
      reply.send(200)
    })
  })

  test('not when a stream is cut after its first bytes', async () => {
    const { uses } = usesOf('pass') as { uses: number }
    const begun = Promise.withResolvers<Reply>()
    shop.upstream.script = (_, reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' })
      reply.chunk('data: 1\n\n')
      begun.resolve(reply)
    }
    const response = await use(wallet, path)
    expect(given(response)).toMatchObject({ kind: 'pass' })
    const reply = await begun.promise
    reply.cut()
    await response.text().catch(() => undefined)
    await untilBooked()
    expect(usesOf('pass')?.uses).toBe(uses + 1)
  })

  test('and nothing is counted for parameters that cannot be served', async () => {
    const bad = 'house/all?n=x'
    await refused(bad, await signed(wallet, bad), { status: 400, code: 'invalid-parameter' })
  })

  test('the last use at once is one answer', async () => {
    const headers = await Promise.all([1, 2, 3].map(() => signed(wallet, path)))
    const answers = await Promise.all(headers.map((each) => send(path, each)))
    // One that looks later may have a trial.
    expect(answers.filter((each) => given(each).kind === 'pass')).toHaveLength(1)
    expect(usesOf('pass')).toMatchObject({ uses: 2 })
  })
})

test('a pass counts only while its payment is confirmed', async () => {
  const wallet = await walletWith(100_000n)
  await bought(wallet, 'narrow/one/pass')
  expect((await use(wallet, 'narrow/one')).status).toBe(200)
  await untilBooked()
  const [{ hash }] = rows(
    'SELECT transaction_hash AS hash FROM payments ORDER BY id DESC LIMIT 1',
  ) as [{ hash: Hex }]
  await shop.ledger.settling.reopen(base, hash)
  const headers = await signed(wallet, 'narrow/one')
  await refused('narrow/one', headers, { status: 402, reason: 'no_entitlement' })
})

test('uses that fail do not stop the sales to others', async () => {
  const wallets = await Promise.all([1, 2, 3].map(() => walletWith(100_000n)))
  for (const wallet of wallets) await bought(wallet, 'narrow/one/pass')
  // The answers of other tests are of no account then.
  shop.advance(121_000)
  shop.upstream.script = (_, reply) => reply.send(503)
  for (const wallet of [...wallets, ...wallets])
    expect((await use(wallet, 'narrow/one')).status).toBe(502)
  shop.upstream.script = undefined
  expect((await buy(at('narrow/one'), x402)).status).toBe(200)
  shop.advance(-121_000)
})

test('a signature that only a contract accepts uses what was paid on its chain alone', async () => {
  const wallet = await walletWith(100_000n)
  await bought(wallet, 'narrow/one/pass')
  const owner = account(2)
  // The same address on the other chain is a contract of somebody else.
  const chain = shop.chains['eip155:4663']
  await chain?.rpc('anvil_setCode', [wallet.address, SmartWallet.deployedBytecode])
  const slot = (value: bigint) => numberToHex(value, { size: 32 })
  await chain?.rpc('anvil_setStorageAt', [wallet.address, slot(0n), slot(BigInt(owner.address))])
  const sign = async (path: string, signer: EVMSigner) =>
    signInHeader(await signedIn(at(path), { signer, network: 'eip155:4663' }))
  const stranger = walletOf(wallet.address, owner)
  await refused('narrow/one', await sign('narrow/one', stranger), {
    ...{ status: 402, code: 'not-entitled', reason: 'no_entitlement' },
  })
  expect((await send('narrow/one', await sign('narrow/one', wallet))).status).toBe(200)
})

test('a trial begins only while a node answers, and nothing is counted before', async () => {
  const wallet = await walletWith(1_000_000n)
  const headers = await signed(wallet, 'house/all')
  const tap = shop.taps[base]
  if (tap) tap.intercept = ({ method }) => (method === 'eth_call' ? 'drop' : undefined)
  await refused('house/all', headers, { status: 503, code: 'not-ready' })
  if (tap) tap.intercept = undefined
  expect(given(await send('house/all', headers))).toMatchObject({ kind: 'trial', remaining: 1 })
})

test('a use takes a place at the upstream, as a payment does', async () => {
  const wallet = await walletWith(1_000_000n)
  await bought(wallet, 'narrow/one/pass')
  const reached = Promise.withResolvers<Reply>()
  shop.upstream.script = (_, reply) => reached.resolve(reply)
  const first = use(wallet, 'narrow/one')
  const reply = await reached.promise
  const second = await signed(wallet, 'narrow/one')
  await refused('narrow/one', second, { status: 503, code: 'not-ready' })
  const paid = await buy(at('narrow/one'), { ...x402, signer: wallet })
  expect(paid.status).toBe(503)
  shop.upstream.script = undefined
  reply.send(200)
  expect((await first).status).toBe(200)
  await untilBooked()
  expect((await send('narrow/one', second)).status).toBe(200)
  await untilBooked()
})

test('a payment is owed, however often its wallet signs in while no place is free', async () => {
  const wallet = await walletWith(10_000n)
  shop.upstream.script = (_, reply) => reply.send(500)
  expect((await buy(at('narrow/two'), { ...x402, signer: wallet })).status).toBe(502)
  const reached = Promise.withResolvers<Reply>()
  shop.upstream.script = (_, reply) => reached.resolve(reply)
  const other = buy(at('narrow/one'), { ...x402, signer: await walletWith(10_000n) })
  const reply = await reached.promise
  // A 402 would have it paid a second time.
  for (let tries = 0; tries < 8; tries++) expect((await use(wallet, 'narrow/two')).status).toBe(503)
  shop.upstream.script = undefined
  reply.send(200)
  expect((await other).status).toBe(200)
  await untilEnded(shop)
  const response = await use(wallet, 'narrow/two')
  expect([response.status, response.headers.has('payment-response')]).toEqual([200, true])
})

test('uses are counted by kind in the metrics and the funnel, and logged without the sign-in', async () => {
  const metrics = await (await fetch(`${shop.url}/metrics`)).text()
  for (const kind of ['again', 'pass', 'trial'])
    expect(metrics).toMatch(
      new RegExp(`turnpike_entitlement_uses_total\\{kind="${kind}",outcome="delivered"\\} [1-9]`),
    )
  expect(metrics).toMatch(
    /turnpike_funnel_total\{merchant="house",client="\w+",step="free"\} [1-9]/,
  )
  const lines = shop.logged.filter((line) => line.includes('"entitlement-use"'))
  expect(JSON.parse(lines[0] ?? '')).toMatchObject({
    kind: 'again',
    reach: 'complete',
    route: '/all',
  })
})
