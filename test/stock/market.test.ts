import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { RpcFault } from '../../src/chain/client'
import type { StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import { createMarket, type MarketOptions } from '../../src/stock/market'
import { problemOf, type Verdict } from '../../src/stock/Snapshot'
import { revert, snapshot } from '../harness/chains'
import { block, drain, movePrice, pause, setFeed, setMultiplier } from '../harness/exchange'
import { outcomeOf } from '../harness/outcome'
import { testWorld, until } from '../harness/world'

// The free routes and their checks, on the real contracts of Uniswap. Every test restores the
// chain.

let clock = Date.now()
const now = () => clock
const world = await testWorld({ exchange: true, now })
afterAll(() => world.stop())
const { networks } = world.config
const network = networks.find(({ id }) => id === 'eip155:4663')
const chain = world.chains['eip155:4663']
const { stock } = world.config
if (!network || !chain || !stock) throw new Error('the shipped file has no stocks')
const { asset } = network
const [nvda, , crcl] = stock.tokens
if (!nvda || !crcl) throw new Error('no tokens')
let state = await snapshot(chain)

beforeEach(async () => {
  await revert(chain, state)
  state = await snapshot(chain)
  // Cached reads are too old now.
  clock += 1_000
})

type Read = MarketOptions['read']
type Call = Parameters<Read>
/** As the desk reads. */
const newest = { fresh: true }

/** A separate market, and its reads. */
function spied(options: Partial<MarketOptions> = {}) {
  const reads: Call[] = []
  const market = createMarket({
    stock: stock as NonNullable<typeof stock>,
    asset,
    now,
    // On a busy machine a chain answers late.
    timeoutMs: 60_000,
    ...options,
    read: (...call) => {
      reads.push(call)
      return (options.read ?? world.app.settlement.read)(...call)
    },
  })
  return { market, reads }
}

const usdg = (amount: number) => BigInt(amount) * 1_000_000n

async function judged(token: StockToken, people: `0x${string}`[] = [], amount = usdg(10)) {
  const { market } = spied()
  return withStatus(market.judge(await market.snapshotOf(token, amount, { people })))
}

/** A refusal with the status of its problem. */
function withStatus(verdict: Verdict) {
  return verdict.ok ? verdict : { ...verdict, status: problemOf(verdict).status }
}

const ok = { ok: true, warnings: [] } as const

describe('what the chain says of a token', () => {
  test('all values of an answer come from one block, in one call', async () => {
    const { market, reads } = spied()
    const snapshots = await market.snapshots()
    expect(reads).toHaveLength(1)
    expect(snapshots.map(({ token }) => token.symbol)).toEqual(
      stock.tokens.map(({ symbol }) => symbol),
    )
    expect(new Set(snapshots.map(({ blockNumber }) => blockNumber)).size).toBe(1)
    for (const snapshot of snapshots) {
      expect(snapshot).toMatchObject({ isPinned: true, decimals: 18, multiplierE18: 10n ** 18n })
      const price = samplePrice(snapshot.token.symbol)
      expect(Number(snapshot.midPriceAtomic) / 1e6).toBeCloseTo(price, 4)
      // The pool's fee is added.
      expect(Number(snapshot.priceAtomic) / 1e6 / price - 1).toBeCloseTo(
        snapshot.token.fee / 1e6,
        4,
      )
      expect(Number(snapshot.feed?.priceAtomic) / 1e6).toBe(price)
      expect(market.judge(snapshot)).toEqual(ok)
    }
  })

  test('within a second the node is not called again, unless a fresh read is required', async () => {
    const { market, reads } = spied()
    await Promise.all([market.snapshots(), market.snapshots(), market.snapshotOf(nvda, usdg(5))])
    await market.snapshotOf(nvda, usdg(5))
    const before = reads.length
    expect(before).toBeLessThanOrEqual(2)
    await market.snapshotOf(nvda, usdg(5), { fresh: true })
    expect(reads).toHaveLength(before + 1)
    clock += 1_000
    await market.snapshotOf(nvda, usdg(5))
    await market.snapshot(nvda)
    expect(reads).toHaveLength(before + 3)
  })

  test('concurrent quotes share one call', async () => {
    const { market, reads } = spied()
    const amounts = Array.from({ length: 60 }, (_, index) => usdg(1) + BigInt(index))
    const snapshots = await Promise.all(amounts.map((amount) => market.snapshotOf(nvda, amount)))
    expect(snapshots.map((snapshot) => snapshot.usdgAtomic)).toEqual(amounts)
    for (const snapshot of snapshots) expect(snapshot.sharesAtomic).toBeGreaterThan(0n)
    expect(reads.length).toBeLessThanOrEqual(3)
    expect(Math.max(...reads.map(([, calls]) => calls.length))).toBeLessThanOrEqual(400)
  })

  test('the multiplier is shown and changes no amount', async () => {
    const { market } = spied()
    const before = await market.snapshotOf(nvda, usdg(10), { fresh: true })
    await setMultiplier(chain, nvda, 25n * 10n ** 17n)
    const after = await market.snapshotOf(nvda, usdg(10), { fresh: true })
    expect(after.multiplierE18).toBe(25n * 10n ** 17n)
    expect([after.sharesAtomic, after.priceAtomic]).toEqual([
      before.sharesAtomic,
      before.priceAtomic,
    ])
  })
})

describe('before money moves', () => {
  const person = account(6).address

  test('an order without a reason for refusal is accepted', async () => {
    expect(await judged(nvda, [person])).toEqual(ok)
  })

  test('error: halted and paused tokens, and blocked accounts, are refused', async () => {
    await pause(chain, nvda, { token: true })
    expect(await judged(nvda)).toMatchObject({ ok: false, code: 'halted', status: 409 })
    await pause(chain, nvda, { everything: true })
    expect(await judged(nvda)).toMatchObject({ ok: false, code: 'paused', status: 503 })
    await block(chain, stock.registry, person)
    const detail = expect.stringContaining(person)
    const blocked = { ok: false, code: 'blocked', status: 400, detail }
    expect(await judged(crcl, [account(1).address, person])).toMatchObject(blocked)
    expect(await judged(crcl, [account(1).address])).toEqual(ok)
  })

  test('error: a registry or a token that cannot be read is a refusal', async () => {
    await chain.rpc('anvil_setCode', [stock.registry, '0x'])
    expect(await judged(nvda, [person])).toMatchObject({ code: 'unreadable', status: 503 })
    await chain.rpc('anvil_setCode', [nvda.address, '0x'])
    expect(await judged(nvda)).toMatchObject({ code: 'unreadable', status: 503 })
  })

  test('error: a pool that the factory does not confirm is refused', async () => {
    for (const wrong of [{ pool: crcl.pool }, { fee: 3000 }, { pool: person }])
      expect(await judged({ ...nvda, ...wrong })).toMatchObject({ code: 'pool-mismatch' })
  })

  test('error: a pool with another pair or fee than in the factory is refused', async () => {
    const word = (value: bigint) => `0x${value.toString(16).padStart(64, '0')}` as const
    // After the quote and the factory's answer: token0, token1 and fee.
    const lies = [2, 3, 4].map((index) => [index, word(1n)] as const)
    for (const [index, lie] of lies) {
      const read: Read = async (...call) => {
        const answer = await world.app.settlement.read(...call)
        return { ...answer, results: answer.results.with(index, lie) }
      }
      const { market } = spied({ read })
      const verdict = market.judge(await market.snapshotOf(nvda, stock.minAtomic, newest))
      expect(withStatus(verdict)).toMatchObject({ code: 'pool-mismatch', status: 503 })
    }
  })

  test('error: a price too far from a fresh feed is refused, on either side', async () => {
    const price = samplePrice(nvda.symbol)
    for (const factor of [1.02, 0.98]) {
      await movePrice(chain, asset.address, nvda, price * factor)
      expect(await judged(nvda)).toEqual(ok)
    }
    for (const factor of [1.031, 0.969]) {
      await movePrice(chain, asset.address, nvda, price * factor)
      expect(await judged(nvda)).toMatchObject({ code: 'feed-distance', status: 503 })
    }
  })

  test('error: a pool without liquidity has a price, and no quote for the amount', async () => {
    await drain(chain, nvda, 960_000)
    expect(await judged(nvda, [], usdg(10))).toEqual(ok)
    expect(await judged(nvda, [], usdg(1000))).toMatchObject({ code: 'feed-distance' })
    await drain(chain, nvda, 1_000_000)
    expect(await judged(nvda)).toMatchObject({ code: 'no-liquidity', status: 503 })
  })

  test('a stale, paused or unavailable feed only adds a warning', async () => {
    const maxAge = stock.feedMaxAgeSeconds
    await setFeed(chain, nvda, 1, maxAge + 3_600)
    expect(await judged(nvda)).toEqual({ ok: true, warnings: ['feed-stale'] })
    await setFeed(chain, nvda, 1)
    expect(await judged(nvda)).toMatchObject({ code: 'feed-distance' })
    await pause(chain, nvda, { oracle: true })
    expect(await judged(nvda)).toEqual({ ok: true, warnings: ['feed-paused'] })
    await pause(chain, nvda, {})
    await setFeed(chain, nvda, -1)
    expect(await judged(nvda)).toEqual({ ok: true, warnings: ['feed-unreadable'] })
    expect(await judged({ ...nvda, feed: undefined })).toEqual(ok)
  })
})

describe('for the desk', () => {
  test('the quote, the check and the swap of an order agree', async () => {
    const { market, reads } = spied()
    const buyer = account(1).address
    const quote = await market.snapshotOf(nvda, usdg(25), { people: [buyer], fresh: true })
    expect(reads).toHaveLength(1)
    expect(market.judge(quote)).toEqual(ok)
    const floorAtomic = quote.sharesAtomic ?? 0n
    const deadline = BigInt(Math.floor(clock / 1000) + 60)
    const people = { recipient: buyer, payer: account(3).address }
    const swap = { token: nvda, ...people, usdgAtomic: usdg(25), floorAtomic, deadline }
    const [fund, route] = market.swap(swap)
    await execute(chain, [{ from: buyer, ...fund }])
    await execute(chain, [{ from: buyer, ...route, gas: 500_000n }])
    expect(await balanceOf(chain, nvda.address, buyer)).toBe(floorAtomic)
    // The pool moved: the same order is below the minimum now.
    await execute(chain, [{ from: buyer, ...fund }])
    const again = { from: buyer, ...route }
    expect(await outcomeOf(chain.rpc('eth_call', [again, 'latest']))).toThrow('Too little received')
    await drain(chain, nvda, 1_000_000)
    const { sharesAtomic } = await market.snapshotOf(nvda, usdg(25), newest)
    expect(sharesAtomic).toBeUndefined()
  })
})

describe('a node that does not answer', () => {
  const silent: Read = () => new Promise(() => undefined)
  const down: Read = () => Promise.reject(new RpcFault('down'))

  test('error: an outage of the node is reported within the time limit', async () => {
    const { market } = spied({ read: silent, timeoutMs: 50 })
    const failures = await Promise.all(
      [market.snapshots(), market.snapshotOf(nvda, usdg(5)), market.snapshot(nvda)].map(
        (snapshot) => Promise.resolve(snapshot).catch((error: unknown) => error),
      ),
    )
    for (const failure of failures)
      expect(failure).toMatchObject({ name: 'RpcFault', retryable: true })
  })

  test('during an outage the list keeps its last values with their time; quotes fail', async () => {
    let read = world.app.settlement.read
    const { market } = spied({ read: (...call) => read(...call) })
    const seen = await market.snapshots()
    read = down
    clock += 60_000
    expect(await market.snapshots()).toBe(seen)
    expect(await outcomeOf(market.snapshotOf(nvda, usdg(5)))).toThrow('down')
    read = world.app.settlement.read
    clock += 1_000
    expect((await market.snapshots())[0]?.readAt).toBe(clock)
    // The fault was not cached.
    expect((await market.snapshotOf(nvda, usdg(5))).sharesAtomic).toBeGreaterThan(0n)
  })

  test('error: quotes above the limit are refused instead of queued', async () => {
    const { market, reads } = spied({ read: silent, timeoutMs: 200 })
    const asked = Array.from({ length: 1_500 }, (_, index) =>
      market.snapshotOf(nvda, usdg(1) + BigInt(index)).catch((error: Error) => error.name),
    )
    const turnedAway = new Set(await Promise.all(asked))
    expect([...turnedAway]).toEqual(['RpcFault'])
    expect(reads.length).toBeLessThanOrEqual(2)
  })
})

describe('the free routes', () => {
  const get = (path: string, headers: Record<string, string> = {}) =>
    fetch(`${world.url}/api/stock/${path}`, { headers })
  const json = async (path: string) => (await get(path)).json() as Promise<Record<string, unknown>>

  test('the list has every token with price, limits and status', async () => {
    const body = await json('list')
    expect(Object.keys(body)).toEqual(['network', 'asset', 'payTo', 'stocks'])
    expect(body).toMatchObject({
      network: 'eip155:4663',
      asset: asset.address,
      payTo: account(0).address,
    })
    const stocks = body.stocks as Record<string, unknown>[]
    expect(stocks).toHaveLength(14)
    expect(stocks[0]).toEqual({
      symbol: 'NVDA',
      name: 'NVIDIA',
      address: nvda.address,
      decimals: 18,
      pool: nvda.pool,
      price: '186.493993',
      priceUpdatedAt: new Date(clock).toISOString(),
      multiplier: '1.000000000000000000',
      feeBps: 0,
      slippageBps: 100,
      min: '1.000000',
      max: '1000.000000',
      status: 'open',
    })
  })

  test('the list shows which tokens cannot be bought', async () => {
    await pause(chain, nvda, { token: true })
    await pause(chain, crcl, { everything: true })
    type Entry = { symbol: string; status: string; price: string }
    const { stocks } = (await json('list')) as { stocks: Entry[] }
    expect(stocks[0]?.price).toBe('186.400000')
    const status = Object.fromEntries(stocks.map((entry) => [entry.symbol, entry.status]))
    expect(status).toMatchObject({ NVDA: 'halted', CRCL: 'paused', SPY: 'open' })
  })

  test('a quote has shares, minimum and total', async () => {
    const body = await json('quote?symbol=nvda&usdg=25.5&utm_source=x')
    expect(body).toEqual({
      symbol: 'NVDA',
      usdg: '25.500000',
      fee: '0.000000',
      total: '25.500000',
      totalAtomic: '25500000',
      estimatedShares: '0.136720235328470986',
      estimatedSharesAtomic: '136720235328470986',
      minimumShares: '0.135353032975186276',
      minimumSharesAtomic: '135353032975186276',
      price: '186.512260',
      multiplier: '1.000000000000000000',
      slippageBps: 100,
      blockNumber: expect.any(Number),
      quotedAt: new Date(clock).toISOString(),
    })
  })

  test('error: every invalid parameter is named', async () => {
    const faults: readonly (readonly [string, readonly string[]])[] = [
      ['', ['symbol', 'usdg']],
      ['symbol=NVDA', ['usdg']],
      ['usdg=5', ['symbol']],
      ['symbol=&usdg=', ['symbol', 'usdg']],
      ['symbol=NVDA&usdg=0.999999', ['usdg']],
      ['symbol=NVDA&usdg=1000.000001', ['usdg']],
      ['symbol=NVDA&usdg=5.0000001', ['usdg']],
      ['symbol=NVDA&usdg=1e2', ['usdg']],
      ['symbol=NVDA&usdg=-5', ['usdg']],
      ['symbol=NVDA&usdg=0x10', ['usdg']],
      ['symbol=NVDA&usdg=NaN', ['usdg']],
      ['symbol=NVDA&usdg=5&usdg=6', ['usdg']],
      ['symbol=NVDA&symbol=SPY&usdg=6', ['symbol']],
      ['symbol=N%00VDA&usdg=x', ['symbol', 'usdg']],
    ]
    for (const [query, names] of faults) {
      const response = await get(`quote?${query}`)
      expect(response.headers.get('content-type')).toBe('application/problem+json')
      const body = (await response.json()) as { invalidParams: { name: string }[] }
      const found = [...new Set(body.invalidParams.map(({ name }) => name))]
      expect([query, response.status, found]).toEqual([query, 400, [...names]])
    }
  })

  test('error: a quote of an unknown, halted or paused token, or one too far from its feed, is refused', async () => {
    const refused = async () => {
      clock += 1_000
      const { status, code, reason } = await json('quote?symbol=NVDA&usdg=5')
      return [status, code, reason]
    }
    expect(await json('quote?symbol=HOOD&usdg=5')).toMatchObject({ status: 404, code: 'not-found' })
    await setFeed(chain, nvda, 1)
    expect(await refused()).toEqual([503, 'not-ready', 'feed-distance'])
    await pause(chain, nvda, { everything: true })
    expect(await refused()).toEqual([503, 'paused', 'paused'])
    await pause(chain, nvda, { token: true })
    expect(await refused()).toEqual([409, 'halted', 'halted'])
  })

  test('a paused feed is a warning and does not refuse a quote', async () => {
    await setFeed(chain, nvda, 1, stock.feedMaxAgeSeconds + 3_600)
    const body = await json('quote?symbol=NVDA&usdg=5')
    expect(body).toMatchObject({ symbol: 'NVDA', warnings: ['feed-stale'] })
  })

  test('error: without a node there is no quote, and the list has its last values', async () => {
    const before = await json('list')
    await chain.rpc('anvil_setCode', ['0xcA11bde05977b3631167028862bE2a173976CA11', '0x'])
    clock += 20_000
    const { stocks } = (await json('list')) as { stocks: Record<string, unknown>[] }
    const known = (before as { stocks: Record<string, unknown>[] }).stocks
    expect(stocks).toEqual(known.map((entry) => ({ ...entry, status: 'stale' })))
    const refused = await get('quote?symbol=NVDA&usdg=5')
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '2'])
    expect(await refused.json()).toMatchObject({ code: 'not-ready' })
  })

  test('error: other methods are 405, unknown paths 404', async () => {
    for (const path of ['list', 'quote']) {
      const url = `${world.url}/api/stock/${path}`
      const body = 'x'.repeat(100_000)
      const response = await fetch(url, { method: 'POST', body })
      expect([response.status, response.headers.get('allow')]).toEqual([405, 'GET, HEAD, OPTIONS'])
      const head = await fetch(`${url}?symbol=NVDA&usdg=5`, { method: 'HEAD' })
      expect([head.status, await head.text()]).toEqual([200, ''])
    }
    expect((await get('nothing')).status).toBe(404)
  })

  test('error: the number of requests of each address is limited', async () => {
    const { quotePerMinute } = world.config.service
    clock += 120_000
    const statuses: number[] = []
    for (let index = 0; index <= quotePerMinute; index++)
      statuses.push((await get(index % 2 === 0 ? 'list' : 'quote?symbol=NVDA&usdg=5')).status)
    expect(statuses.pop()).toBe(429)
    expect([...new Set(statuses)]).toEqual([200])
    const refused = await get('list')
    expect(refused.headers.get('retry-after')).toBe('1')
    clock += 60_000
    await until('the address may ask again', async () => (await get('list')).status === 200)
  })
})
