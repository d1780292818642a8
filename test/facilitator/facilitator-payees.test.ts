import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Address, Hex } from 'viem'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open } from '../../db/sqlite/open'
import { createGas } from '../../db/sqlite/payments'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { createPayees, type Payees } from '../../src/facilitator/payees'
import { claimMoney } from '../../src/paywall/checkout'
import type { Id } from '../../src/protocol/Network'
import { inSeconds, randomNonce } from '../harness/buyer'
import { configOf, small } from '../harness/config'
import { makeBody, post } from '../harness/facilitation'
import { temporary } from '../harness/settlement'
import { payee as own, type Shop, startShop } from '../harness/shop'

/** Attack 43: unknown callers that let this facilitator pay for their own merchants. */

const base: Id = 'eip155:8453'
const [stranger, other] = [account(8).address, account(6).address]
const dayMs = 86_400_000

function withFacilitator(config: Config, changes: Partial<Config['facilitator']>): Config {
  return { ...config, facilitator: { ...config.facilitator, ...changes } }
}

function withBudget(config: Config, wei: bigint): Config {
  const networks = config.networks.map((network) => ({
    ...network,
    gasPerDayWei: { ...network.gasPerDayWei, facilitator: wei },
  }))
  return { ...config, networks }
}

describe('a facilitator that settles for any payee', () => {
  let shop: Shop
  beforeAll(async () => {
    shop = await startShop({
      adjust: (config) => withFacilitator(config, { payTo: 'any', minAmountAtomic: 10n }),
    })
  })
  afterAll(() => shop?.stop())

  const until = () => inSeconds(300) + BigInt(Math.round((shop.now() - Date.now()) / 1000))

  async function settle(to: Address, more: { headers?: Record<string, string> } = {}) {
    const network = shop.config.networks.find(({ id }) => id === base)
    if (network === undefined) throw new Error('no network')
    const validBefore = until()
    const body = await makeBody(network, { to, requirements: { payTo: to }, validBefore })
    return post(`${shop.url}/settle`, body, more.headers)
  }

  const spentWei = () =>
    BigInt(
      String(
        shop.rows(`SELECT wei FROM gas_spent WHERE product = 'facilitator' ORDER BY day DESC`)[0]
          ?.wei ?? 0,
      ),
    )

  test('error: one payee may use its share of the gas of the day, also after a restart', async () => {
    for (let count = 0; count < 4; count++) {
      expect((await settle(stranger)).json).toMatchObject({ success: true })
    }
    // All of it was spent for the unlisted payee, and is more than a quarter of this budget.
    const tight = withBudget(shop.config, spentWei() * 3n)
    await shop.restart(tight)
    const rows = shop.counts()
    const calls = shop.calls()
    const { status, json, headers } = await settle(stranger)
    expect(status).toBe(503)
    expect(json.success).toBeUndefined()
    expect(json.detail).toContain('one payee')
    expect(Number(headers.get('retry-after'))).toBe(600)
    expect([shop.counts(), shop.calls()]).toEqual([rows, calls])
    expect((await settle(other)).json).toMatchObject({ success: true })
    expect((await settle(own)).json).toMatchObject({ success: true })
    expect((await settle(stranger)).status).toBe(503)

    // From now on it is counted in memory.
    let refused = 0
    for (let count = 0; count < 6 && refused === 0; count++) {
      if ((await settle(other)).status === 503) refused = count
    }
    expect(refused).toBeGreaterThan(0)
    expect(shop.app.settlement.hasBudget(base, 'facilitator')).toBe(true)
    expect((await settle(own)).json).toMatchObject({ success: true })

    // Payees that the operator lists have no such limit.
    const listed = withFacilitator(tight, { payTo: [stranger, other] })
    expect(await shop.app.reload(listed)).toEqual([])
    expect((await settle(stranger)).json).toMatchObject({ success: true })
    const hash: Hex = `0x${new Bun.CryptoHasher('sha256').update('key').digest('hex')}`
    expect(await shop.app.reload(withFacilitator(tight, { apiKeyHashes: [hash] }))).toEqual([])
    const keyed = await settle(stranger, { headers: { 'x-api-key': 'key' } })
    expect(keyed.json).toMatchObject({ success: true })
    expect(await shop.app.reload(tight)).toEqual([])
    expect((await settle(stranger)).status).toBe(503)

    shop.advance(dayMs)
    expect((await settle(stranger)).json).toMatchObject({ success: true })
  })

  test('a call for money that another product has claimed costs its payee no share', async () => {
    expect((await settle(stranger)).json).toMatchObject({ success: true })
    await shop.restart(withBudget(shop.config, spentWei() * 40n))
    const [network] = shop.config.networks.filter(({ id }) => id === base)
    if (network === undefined) throw new Error('no network')
    const nonce = randomNonce()
    const validBefore = until()
    const made = { to: stranger, requirements: { payTo: stranger }, nonce, validBefore }
    const body = await makeBody(network, made)
    const { address: asset } = network.asset
    const money = { network: base, asset, payer: account(1).address, nonce }
    const claim = claimMoney(shop.app.claims, money)
    for (let count = 0; count < 12; count++) {
      const { status, json } = await post(`${shop.url}/settle`, body)
      expect(status).toBe(503)
      expect(json.detail).not.toContain('one payee')
    }
    claim?.release()
    expect((await post(`${shop.url}/settle`, body)).json).toMatchObject({ success: true })
  })
})

describe('the cost of a payee', () => {
  const at = 20_000 * dayMs + 5
  let directory: ReturnType<typeof temporary>
  let db: Db
  let clock: number
  beforeEach(() => {
    directory = temporary()
    clock = at
    db = open({ dataDir: directory.path, now: () => clock })
  })
  afterEach(() => {
    db.close()
    directory.remove()
  })

  let last = 0
  const word = () => `0x${(++last).toString(16).padStart(64, '0')}` as const

  function insert(table: string, row: Record<string, string | number | null>): void {
    const names = Object.keys(row)
    const marks = names.map(() => '?').join(', ')
    db.sqlite.run(
      `INSERT INTO ${table} (${names.map((name) => `"${name}"`).join(', ')}) VALUES (${marks})`,
      Object.values(row),
    )
  }

  /** A payment with a request time. */
  function pay(payee: Address, createdAt = at, product = 'facilitator'): string {
    const nonce = word()
    const id = `pay_${createdAt.toString(16).padStart(12, '0')}${nonce.slice(-20)}`
    insert('payments', {
      ...{ id, method: 'eip3009', network: base, chain_id: 8453, asset: account(3).address },
      ...{ payer: account(1).address, payee, amount_atomic: '10', nonce, signature: '0x00' },
      ...{ valid_after: '0', valid_before: '9', product, protocol: 'x402', merchant: '' },
      ...{ route: '', fingerprint: 'f', resource: '', bound: 0, received_at: 1, known_block: 1 },
      ...{ state: 'broadcast', transaction_hash: word(), created_at: createdAt },
    })
    return id
  }

  function send(ids: readonly string[], gasLimit: number, nonce: number, state = 'sent'): void {
    const hash = word()
    insert('transactions', {
      ...{ hash, network: base, relayer: account(0).address, nonce, kind: 'payment' },
      ...{ product: 'facilitator', to: account(3).address, raw: '0x02', max_fee_wei: '1' },
      ...{ gas_limit: String(gasLimit), max_tip_wei: '1', state, created_at: 1, first_sent_at: 1 },
    })
    for (const [position, payment_id] of ids.entries()) {
      insert('transaction_members', { transaction_hash: hash, position, payment_id })
    }
  }

  const spend = (wei: bigint) => createGas(db).add(base, 'facilitator', clock, wei)

  function start(budgetWei: bigint): Payees {
    const { networks } = withBudget(configOf(small), budgetWei)
    return createPayees({ ledger: createLedger(db), networks, priceOf: () => 2n, now: () => clock })
  }

  /** The largest budget whose quarter the payee has used. */
  async function costOf(payee: Address): Promise<bigint> {
    for (let wei = 1n; ; wei++) {
      const payees = start(wei * 4n)
      await payees.load()
      if (!payees.isSpent(base, payee)) return wei - 1n
    }
  }

  const costsOf = (payees: readonly Address[]) => Promise.all(payees.map(costOf))

  test('members of a batch share its cost by their gas limits', async () => {
    const batch = [pay(stranger), pay(other), pay(other), pay(own)]
    send(batch, 400, 0)
    send([pay(stranger)], 600, 1)
    spend(100n)
    expect(await costsOf([stranger, other, own])).toEqual([70n, 20n, 10n])
  })

  test('a replacement counts once, a payment that is sent again counts again', async () => {
    const [first, second] = [pay(stranger), pay(other)]
    send([first], 300, 0)
    send([first], 300, 0)
    send([second], 300, 1, 'replaced')
    send([second], 300, 1)
    send([second], 300, 2)
    spend(90n)
    expect(await costsOf([stranger, other])).toEqual([30n, 60n])
  })

  test('costs of the previous day and of the gateway do not count', async () => {
    send([pay(stranger, at - dayMs)], 300, 0)
    send([pay(stranger, at, 'gateway')], 300, 1)
    send([pay(other)], 300, 2)
    spend(90n)
    expect(await costsOf([stranger, other])).toEqual([0n, 90n])
  })

  test('attack: settlements in progress count at the present price, so that concurrent ones cannot exceed the share', async () => {
    // A quarter is three times the cost of one settlement in progress.
    const payees = start(3n * 300_000n * 2n * 4n)
    await payees.load()
    const counts = []
    for (; !payees.isSpent(base, stranger); )
      counts.push(payees.begin({ network: base, payee: stranger, known: undefined }))
    expect(counts).toHaveLength(3)
    expect(payees.isSpent(base, other)).toBe(false)
    await counts[0]?.end(undefined)
    expect(payees.isSpent(base, stranger)).toBe(false)
    for (const count of counts.slice(1)) await count.end(undefined)
    expect(payees.isSpent(base, stranger)).toBe(false)
  })

  /** A ledger whose read of the day returns its rows only after `release` is called. */
  function startSlowly(budgetWei: bigint) {
    const { networks } = withBudget(configOf(small), budgetWei)
    const { gas, payments } = createLedger(db)
    const { promise, resolve: release } = Promise.withResolvers<void>()
    let reads = 0
    const payeeGasSince = async (since: number) => {
      reads++
      const found = await payments.payeeGasSince(since)
      await promise
      return found
    }
    const ledger = { gas, payments: { ...payments, payeeGasSince } }
    const payees = createPayees({ ledger, networks, priceOf: () => 2n, now: () => clock })
    return { payees, release, reads: () => reads }
  }

  test('attack: concurrent calls that wait for the read of the day cannot exceed the share', async () => {
    const { payees, release, reads } = startSlowly(3n * 300_000n * 2n * 4n)
    const call = async () => {
      await payees.load()
      if (payees.isSpent(base, stranger)) return 'refused'
      await payees.begin({ network: base, payee: stranger, known: undefined }).ready
      return 'sent'
    }
    const calls = Array.from({ length: 10 }, call)
    release()
    expect((await Promise.all(calls)).filter((each) => each === 'sent')).toHaveLength(3)
    expect(reads()).toBe(1)
  })

  test('a payment that begins while the day is read is counted once', async () => {
    send([pay(other)], 100, 0)
    spend(100n)
    const { payees, release } = startSlowly(70n * 4n)
    const loading = payees.load()
    const count = payees.begin({ network: base, payee: stranger, known: undefined })
    release()
    await Promise.all([loading, count.ready])
    const id = pay(stranger)
    send([id], 300, 1)
    await count.end(id)
    // 75 of 100 belong to the unlisted payee: its 300 of 400 gas count only once.
    expect([stranger, other].map((each) => payees.isSpent(base, each))).toEqual([true, false])
  })

  test('error: a day whose gas cannot be read is read again, and no settlement stays in progress', async () => {
    const { networks } = withBudget(configOf(small), 300_000n * 2n * 4n)
    const { gas, payments } = createLedger(db)
    const failing = async () => Promise.reject(new Error('no database'))
    const ledger = { gas, payments: { ...payments, payeeGasOf: failing } }
    const payees = createPayees({ ledger, networks, priceOf: () => 2n, now: () => clock })
    await payees.load()
    const count = payees.begin({ network: base, payee: stranger, known: undefined })
    await count.ready
    expect(payees.isSpent(base, stranger)).toBe(true)
    const id = pay(stranger)
    send([id], 300, 0)
    spend(300_000n)
    await count.end(id)
    expect(payees.isSpent(base, stranger)).toBe(false)
    await payees.load()
    expect(payees.isSpent(base, other)).toBe(false)
    spend(300_000n)
    expect(payees.isSpent(base, stranger)).toBe(true)
  })

  test('later costs are added once, and end with the day', async () => {
    send([pay(other)], 100, 0)
    spend(100n)
    const [low, high] = [start(70n * 4n), start(80n * 4n)]
    const spent = async (of: Payees) => {
      await of.load()
      return [stranger, other].map((each) => of.isSpent(base, each))
    }
    expect([await spent(low), await spent(high)]).toEqual([
      [false, true],
      [false, true],
    ])
    const settle = async (known: string | undefined, act: () => string) => {
      const payment = { network: base, payee: stranger, known }
      const counts = [low, high].map((each) => each.begin(payment))
      for (const { ready } of counts) await ready
      const id = act()
      for (const { end } of counts) await end(id)
      return id
    }
    const id = await settle(undefined, () => {
      const written = pay(stranger)
      send([written], 300, 1)
      return written
    })
    // 75 of 100 belong to the unlisted payee now.
    const after = [
      [true, false],
      [false, false],
    ]
    expect([await spent(low), await spent(high)]).toEqual(after)
    await settle(id, () => id)
    expect([await spent(low), await spent(high)]).toEqual(after)
    clock += dayMs
    expect(await spent(low)).toEqual([false, false])
  })

  test('all of the gas under way counts for a job, and for what another gateway is to send', async () => {
    send([pay(other)], 300_000, 0)
    spend(1_000n)
    const isSpentBy = async (job: { gas?: bigint }) => {
      const payees = start(2_000n)
      await payees.load()
      const count = payees.begin({ network: base, payee: stranger, known: undefined, ...job })
      await count.ready
      await count.end('all')
      return payees.isSpent(base, stranger)
    }
    expect(await isSpentBy({})).toBe(true)
    expect(await isSpentBy({ gas: 300_000n })).toBe(true)
    expect(await isSpentBy({ gas: 299_999n })).toBe(false)
  })

  test('a payment of yesterday that is requested again today does not count for today', async () => {
    const id = pay(stranger, at - 10)
    send([id], 300, 0)
    const payees = start(1_000_000n)
    await payees.load()
    expect(payees.isSpent(base, stranger)).toBe(false)
    const count = payees.begin({ network: base, payee: stranger, known: id })
    await count.ready
    await count.end(id)
    expect(payees.isSpent(base, stranger)).toBe(false)
  })
})
