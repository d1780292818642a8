import { describe, expect, test } from 'bun:test'
import type { Loss } from '../../db/authorizations'
import {
  type Credit,
  type CreditLimits,
  createCredit,
  type Debtor,
} from '../../src/settlement/upto/credit'
import { createRandom } from '../soak/random'

/** What payers may owe to a merchant by `upto`, without a chain. */

const hourMs = 3_600_000
const dayMs = 24 * hourMs
const limits: CreditLimits = { payerAtomic: 30n, dayAtomic: 100n, holdsNew: true }

/** A process, or one of several, over rows that all of them share. */
function start(given: Partial<Parameters<typeof createCredit>[0]> = {}) {
  const world = { now: 10 * dayMs, paid: new Map<string, bigint>(), rows: [] as Loss[], logged: 0 }
  const ledger = {
    lossesSince: async (at: number) => world.rows.filter((row) => row.at > at),
    standingOf: async ({ payer }: Debtor) => ({
      paidAtomic: world.paid.get(payer) ?? 0n,
      lostAtomic: world.rows
        .filter((row) => row.payer === payer)
        .reduce((sum, { atomic }) => sum + atomic, 0n),
    }),
  }
  const create = () =>
    createCredit({
      ledger: ledger as unknown as Parameters<typeof createCredit>[0]['ledger'],
      lanes: { isShared: false, gateways: () => 1 },
      limitsOf: () => limits,
      now: () => world.now,
      log: () => void world.logged++,
      ...given,
    })
  return { world, create }
}

const debtorOf = (payer: string, client?: string): Debtor => ({
  network: 'eip155:8453',
  asset: '0x01',
  payer: payer as `0x${string}`,
  merchant: 'shop',
  client,
})

/** Opens a ceiling, if it may be opened. */
async function open(credit: Credit, debtor: Debtor, atomic: bigint) {
  await credit.read(debtor, atomic)
  return credit.refuse(debtor, atomic) ?? credit.open(debtor, atomic)
}

const reasonOf = (opened: Awaited<ReturnType<typeof open>>) =>
  typeof opened === 'function' ? 'opened' : 'reason' in opened ? opened.reason : opened.kind

describe.concurrent('the losses of a merchant', () => {
  for (const gateways of [1, 3])
    test(`attack: no fleet costs more than the limit of a day (${gateways} gateways)`, async () => {
      const seed = crypto.randomUUID().slice(0, 8)
      const random = createRandom(seed)
      const lanes = { isShared: gateways > 1, gateways: () => gateways }
      const { world, create } = start({ lanes })
      const credits = Array.from({ length: gateways }, create)
      const running: { end: () => void; id: string; payer: string; atomic: bigint; at: number }[] =
        []
      let most = 0n
      for (let step = 0; step < 4_000; step++) {
        world.now += random.between(0, hourMs / 20)
        const at = random.between(0, gateways - 1)
        let credit = credits[at] ?? create()
        if (random.chance(0.002)) {
          // A restart ends what is open there, and knows what is written.
          for (const each of running.filter((one) => one.at === at)) each.end()
          running.splice(0, running.length, ...running.filter((one) => one.at !== at))
          credit = create()
          credits[at] = credit
        }
        const payer = `0x${random.between(0, 400)}`
        if (random.chance(0.5)) {
          const atomic = BigInt(random.between(1, 12))
          const end = await open(credit, debtorOf(payer), atomic)
          if (typeof end === 'function') running.push({ end, id: `pay_${step}`, payer, atomic, at })
        } else {
          const [each] = running.splice(random.between(0, running.length), 1)
          if (each === undefined) continue
          const own = credits[each.at]
          if (random.chance(0.05))
            world.paid.set(each.payer, (world.paid.get(each.payer) ?? 0n) + each.atomic)
          else {
            const buyer = { merchant: 'shop', payer: each.payer as `0x${string}` }
            world.rows.push({ ...buyer, id: each.id, atomic: each.atomic, at: world.now })
            own?.lose(each.id, buyer, each.atomic)
          }
          each.end()
          await Promise.all(credits.map((other) => other.refresh()))
        }
        const since = world.now - dayMs
        const short = new Map<string, bigint>()
        for (const { payer: of, atomic, at: lostAt } of [
          ...world.rows,
          ...running.map((one) => ({ ...one, at: world.now })),
        ]) {
          if (lostAt <= since) continue
          short.set(of, (short.get(of) ?? 0n) + atomic)
        }
        let risk = 0n
        for (const [of, atomic] of short) {
          const all = world.rows
            .filter((row) => row.payer === of && row.at <= since)
            .reduce((sum, row) => sum + row.atomic, 0n)
          const left = (world.paid.get(of) ?? 0n) - all
          risk += left >= atomic ? 0n : left <= 0n ? atomic : atomic - left
        }
        if (risk > most) most = risk
        if (risk > limits.dayAtomic) throw new Error(`${risk} at step ${step}, seed ${seed}`)
      }
      // The limit is reached, or the test shows nothing.
      expect([seed, most > limits.dayAtomic / 2n]).toEqual([seed, true])
    })

  test('a limit that is lost ends after a day, and is logged once', async () => {
    const { world, create } = start()
    const credit = create()
    for (let count = 0; count < 10; count++)
      credit.lose(`pay_${count}`, debtorOf(`0x${count}`), 10n)
    expect(reasonOf(await open(credit, debtorOf('0xnew'), 1n))).toBe('upto_losses_spent')
    expect(reasonOf(await open(credit, debtorOf('0xnew'), 1n))).toBe('upto_losses_spent')
    expect(world.logged).toBe(1)
    expect(credit.risks().get('shop')).toBe(100n)
    world.now += dayMs
    expect(reasonOf(await open(credit, debtorOf('0xnew'), 1n))).toBe('opened')
    expect(credit.risks().get('shop')).toBe(1n)
  })

  test('what is only open makes others wait, and refuses none for the day', async () => {
    const credit = start().create()
    for (let count = 0; count < 5; count++)
      expect(reasonOf(await open(credit, debtorOf(`0x${count}`), 20n))).toBe('opened')
    expect(await open(credit, debtorOf('0xnew'), 1n)).toMatchObject({
      kind: 'unavailable',
      retryAfterSeconds: 2,
    })
  })

  test('a payer may owe what it has paid, and a loss uses that up', async () => {
    const { world, create } = start()
    const credit = create()
    world.paid.set('0xa', 50n)
    for (let count = 0; count < 10; count++)
      credit.lose(`pay_${count}`, debtorOf(`0x${count}`), 10n)
    const end = await open(credit, debtorOf('0xa'), 40n)
    if (typeof end !== 'function') throw new Error(end.detail)
    credit.lose('pay_a', debtorOf('0xa'), 40n)
    end()
    expect(reasonOf(await open(credit, debtorOf('0xa'), 20n))).toBe('upto_losses_spent')
    // Its charge is settled after all.
    credit.recover('pay_a')
    expect(reasonOf(await open(credit, debtorOf('0xa'), 20n))).toBe('opened')
  })
})

test('the risk of one payer is limited apart from that of all', async () => {
  const credit = start().create()
  const debtor = debtorOf('0xa')
  expect(reasonOf(await open(credit, debtor, 31n))).toBe('upto_credit_exceeded')
  const end = await open(credit, debtor, 20n)
  if (typeof end !== 'function') throw new Error(end.detail)
  expect(reasonOf(await open(credit, debtor, 11n))).not.toBe('opened')
  expect(reasonOf(await open(credit, debtor, 10n))).toBe('opened')
  // A ceiling that ends twice gives room once.
  end()
  end()
  expect(credit.risks().get('shop')).toBe(10n)
})

describe.concurrent('a request whose money is there', () => {
  const secured = { isSecured: true }
  /** Opens it, if it may be opened. */
  async function begin(credit: Credit, debtor: Debtor, atomic: bigint) {
    await credit.read(debtor, atomic)
    return credit.refuse(debtor, atomic, secured) ?? credit.open(debtor, atomic)
  }

  test('attack: those under way count for the next one of its payer, which may be above the limits itself', async () => {
    const credit = start().create()
    const end = await begin(credit, debtorOf('0xa'), 90n)
    if (typeof end !== 'function') throw new Error(end.detail)
    expect(await begin(credit, debtorOf('0xa'), 1n)).toMatchObject({ retryAfterSeconds: 1 })
    credit.lose('pay_a', debtorOf('0xa'), 90n)
    end()
    expect(reasonOf(await begin(credit, debtorOf('0xa'), 1n))).toBe('upto_credit_exceeded')
  })

  test('attack: those of all payers together are at most one above the limit of a day', async () => {
    const { create, world } = start()
    const credit = create()
    world.paid.set('0xold', 25n)
    const ends = []
    for (let count = 0; ; count++) {
      const end = await begin(credit, debtorOf(`0x${count}`), 30n)
      if (typeof end === 'function') ends.push(end)
      else {
        expect(end).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 2 })
        break
      }
    }
    expect(credit.risks().get('shop')).toBe(120n)
    expect(await begin(credit, debtorOf('0xold'), 25n)).toBeFunction()
    for (const end of ends) end()
    expect(await begin(credit, debtorOf('0xnew'), 25n)).toBeFunction()
  })

  test('what a signer was charged for other payers gives it room', async () => {
    const credit = start().create()
    const debtor = debtorOf('0xa')
    expect(await begin(credit, debtor, 90n)).toBeFunction()
    expect(reasonOf(await begin(credit, debtor, 10n))).toBe('unavailable')
    credit.countSigned(debtor, 60n)
    expect(await begin(credit, debtor, 10n)).toBeFunction()
    expect(reasonOf(await begin(credit, debtor, 10n))).toBe('unavailable')
  })
})

describe.concurrent('answers that cost nothing', () => {
  test('attack: an address has a few for all its wallets together, and none for its neighbours', async () => {
    const credit = start({ limitsOf: () => undefined }).create()
    let free = 0
    for (; free < 100; free++) {
      const debtor = debtorOf(`0x${free}`, 'one')
      if (credit.refuse(debtor, 1n) !== undefined) break
      credit.countUnpaid(debtor.payer, 'one')
    }
    expect(free).toBe(30)
    expect(credit.refuse(debtorOf('0xnew', 'one'), 1n)).toMatchObject({
      limit: 'upto_often_unpaid',
    })
    expect(credit.refuse(debtorOf('0xnew', 'two'), 1n)).toBeUndefined()
  })

  test('attack: failures behind an address end no sale to a payer whose payments cover it', async () => {
    const { world, create } = start()
    const credit = create()
    world.paid.set('0xold', 20n)
    for (let count = 0; count < 30; count++) credit.countUnpaid(`0x${count}`, 'one')
    const old = debtorOf('0xold', 'one')
    expect(await open(credit, old, 15n)).toBeFunction()
    // A part of the next one is not covered.
    expect(reasonOf(await open(credit, old, 6n))).not.toBe('opened')
    const fresh = await open(credit, debtorOf('0xnew', 'one'), 1n)
    expect(fresh).toMatchObject({ limit: 'upto_often_unpaid' })
    for (let count = 0; count < 5; count++) credit.countUnpaid(old.payer, undefined)
    expect(await open(credit, old, 1n)).toMatchObject({ limit: 'upto_often_unpaid' })
  })

  test('a payer whose answers are charged as often as they fail does not wait', () => {
    const credit = start({ limitsOf: () => undefined }).create()
    const debtor = debtorOf('0xa', 'one')
    for (let count = 0; count < 50; count++) {
      credit.countUnpaid(debtor.payer, 'one')
      expect(credit.refuse(debtor, 1n)).toBeUndefined()
      credit.countCharged(debtor.payer, 'one')
    }
  })

  test('an answer that is charged ends one failure of its payer, and no more', () => {
    const credit = start({ limitsOf: () => undefined }).create()
    const debtor = debtorOf('0xa')
    for (let count = 0; count < 5; count++) credit.countUnpaid(debtor.payer, undefined)
    credit.countCharged(debtor.payer, undefined)
    expect(credit.refuse(debtor, 1n)).toBeUndefined()
    credit.countUnpaid(debtor.payer, undefined)
    expect(credit.refuse(debtor, 1n)).toMatchObject({ limit: 'upto_often_unpaid' })
  })

  test('a payer waits two minutes at most after an upstream was away for all', () => {
    const { world, create } = start({ limitsOf: () => undefined })
    const credit = create()
    const debtor = debtorOf('0xa', undefined)
    for (let count = 0; count < 50; count++) credit.countUnpaid(debtor.payer, undefined)
    expect(credit.refuse(debtor, 1n)).toMatchObject({ retryAfterSeconds: 120 })
    world.now += 120_000
    expect(credit.refuse(debtor, 1n)).toBeUndefined()
  })
})
