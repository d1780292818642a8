import { describe, expect, test } from 'bun:test'
import { type Scripted, scripted } from '../harness/scripted'
import { jobOf } from '../harness/settlement'

const daySeconds = 86_400

/** The price of gas on a scripted chain is 2 gwei, and a settling call uses 60,000. */
const callWei = 120_000_000_000_000n

const withBudget = (gateway: bigint) => {
  const budgets = { facilitator: 10n ** 18n, desk: 10n ** 18n, sponsor: 0n, channels: 0n }
  return { network: { gasPerDayWei: { ...budgets, gateway } } }
}

function pass({ chain, clock }: Scripted, seconds: number): void {
  clock.ms += seconds * 1_000
  chain.seconds += BigInt(seconds)
  chain.mine([])
}

describe.concurrent('a budget of gas', () => {
  test('a spent budget refuses its product until the next day, and no other', async () => {
    await using own = await scripted(withBudget(callWei))
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    const transfer = own.sign()
    expect(await own.pay(transfer)).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 600 })
    expect(await own.settlement.find(transfer)).toBeUndefined()
    expect((await own.pay(own.sign(), { product: 'facilitator' })).kind).toBe('confirmed')
    pass(own, daySeconds)
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
  })

  test('a budget with one wei left refuses nothing', async () => {
    await using own = await scripted(withBudget(callWei + 1n))
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect((await own.pay(own.sign())).kind).toBe('unavailable')
  })

  test('a budget counts the limits of transactions in progress, until they are included', async () => {
    // One limit is 200,000 gas.
    await using own = await scripted(withBudget(700_000_000_000_000n))
    own.node.onSend = () => 'keep'
    const first = own.sign()
    await own.begin(first)
    const second = own.sign({ from: 2 })
    await own.begin(second)
    const third = own.sign({ from: 3 })
    expect(await own.pay(third)).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 2 })
    expect(await own.settlement.find(third)).toBeUndefined()
    own.node.onSend = () => 'include'
    own.chain.mine()
    await own.reaches(first, 'confirmed')
    await own.reaches(second, 'confirmed')
    expect((await own.pay(third)).kind).toBe('confirmed')
  })

  test('a budget is charged for a failed transaction', async () => {
    await using own = await scripted(withBudget(callWei))
    const transfer = own.sign()
    own.chain.failing.add(transfer.nonce)
    expect((await own.pay(transfer)).kind).toBe('reverted')
    expect(await own.pay(own.sign())).toMatchObject({
      kind: 'unavailable',
      retryAfterSeconds: 600,
    })
  })

  test('a budget counts what grants in progress give', async () => {
    const dayWei = 1_000_000_000_000_000n
    await using own = await scripted(withBudget(dayWei))
    own.node.onSend = () => 'keep'
    const grant = { kind: 'grant', product: 'gateway' } as const
    const give = (id: string, valueWei: bigint) =>
      own.settlement.run(jobOf(own.network, { ...grant, id, valueWei }), { waitMs: 0 })
    expect((await give('grant:1', 0n)).kind).toBe('pending')
    await own.begin(own.sign())
    expect((await give('grant:2', dayWei)).kind).toBe('pending')
    const detail = 'Transactions under way may spend the gas budget of today; try again.'
    expect(await own.pay(own.sign({ from: 2 }), {}, 0)).toMatchObject({ detail })
    expect((await give('grant:3', 0n)).kind).toBe('unavailable')
  })

  test('failed batches that used their part of the budget make payments be sent alone until the next day', async () => {
    await using own = await scripted(withBudget(5_000_000_000_000_000n))
    const { chain, node } = own
    const batch = async () => {
      const before = own.rows().length
      node.onSend = () => 'keep'
      await own.begin(own.sign({ from: 5 }))
      node.onSend = () => 'include'
      const transfers = [1, 2, 3].map((from) => own.sign({ from }))
      return { before, transfers }
    }
    const known = await batch()
    await Promise.all(known.transfers.map((each) => own.pay(each)))
    const burning = await batch()
    for (const { nonce } of burning.transfers) chain.failing.add(nonce)
    chain.gasOfCall = 150_000n
    await Promise.all(burning.transfers.map((each) => own.pay(each)))
    chain.gasOfCall = 60_000n
    expect(own.rows().slice(burning.before + 1)).toMatchObject([
      { kind: 'batch' },
      { kind: 'payment' },
      { kind: 'payment' },
      { kind: 'payment' },
    ])
    pass(own, 3_600)
    const later = await batch()
    await Promise.all(later.transfers.map((each) => own.pay(each)))
    const kinds = own
      .rows()
      .slice(later.before)
      .map(({ kind }) => kind)
    expect(kinds).toEqual(Array(4).fill('payment'))
    pass(own, daySeconds)
    const tomorrow = await batch()
    await Promise.all(tomorrow.transfers.map((each) => own.pay(each)))
    const rows = own.rows().slice(tomorrow.before)
    expect(rows.some(({ kind }) => kind === 'batch')).toBe(true)
  })
})

describe.concurrent('what failures cost', () => {
  test('a payer whose transaction failed must wait, and no other', async () => {
    await using own = await scripted({ settlement: { payerFailuresMax: 1 } })
    const transfer = own.sign()
    own.chain.failing.add(transfer.nonce)
    expect((await own.pay(transfer)).kind).toBe('reverted')
    const asked = own.node.calls.length
    expect(await own.pay(own.sign())).toMatchObject({ kind: 'unavailable' })
    expect(own.node.calls).toHaveLength(asked)
    expect((await own.pay(own.sign({ from: 2 }))).kind).toBe('confirmed')
    expect(own.node.sends).toHaveLength(2)
    pass(own, 600)
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
  })

  test('a relayer without balance sends nothing', async () => {
    await using own = await scripted()
    own.node.answer = ({ method }) => (method === 'eth_getBalance' ? { result: '0x1' } : undefined)
    await own.restart()
    expect((await own.pay(own.sign())).kind).toBe('unavailable')
    expect(own.node.sends).toEqual([])
  })
})
