import { describe, expect, test } from 'bun:test'
import type { Authorization } from '../../db/Authorization'
import { balanceOf, mine } from '../../src/demo/chains'
import { RowsRefusedError } from '../../src/settlement/send/Outcome'
import { setAutomine } from '../harness/chains'
import { failureOf } from '../harness/outcome'
import { hasPostgres } from '../harness/postgres'
import { payee, purposeOf, signTransfer, until } from '../harness/settlement'
import { authorizeAt, type Seller, uptoCluster } from '../harness/upto-cluster'

/** Several gateways sell by the x402 scheme `upto`. */

const million = 1_000_000n
const cost = { amountAtomic: 700n, units: { input: 7 } }
type Outcome = { kind: string }
const kindsOf = (outcomes: readonly Outcome[]) => outcomes.map(({ kind }) => kind).toSorted()

async function authorized(...given: Parameters<typeof authorizeAt>) {
  const outcome = await authorizeAt(...given)
  if (outcome.kind !== 'authorized') throw new Error(outcome.kind)
  return outcome.authorization
}

const stateOf = async ({ settlement }: Seller, id: string) =>
  (await settlement.authorizations.findById(id))?.state

describe.skipIf(!hasPostgres)('ceilings of one payer at two gateways', () => {
  test('attack: many ceilings at once reserve at most the balance of their payer and unsettled_max', async () => {
    await using own = await uptoCluster()
    const both = await own.pair()
    const cases = [
      { balance: 300_000n, ceiling: 100_000n, accepted: 3 },
      { balance: 10n * million, ceiling: 400_000n, accepted: 2 },
    ]
    for (const { balance, ceiling, accepted } of [...cases, ...cases]) {
      const payer = await own.payer(balance)
      const asked = Array.from({ length: 8 }, async (_, index) => {
        const seller = both[index % 2 === 0 ? 0 : 1]
        return authorizeAt(seller, await own.sign(payer, seller, ceiling))
      })
      const kinds = kindsOf(await Promise.all(asked))
      const refused = Array<string>(8 - accepted).fill('unavailable')
      expect(kinds).toEqual([...Array<string>(accepted).fill('authorized'), ...refused])
    }
  })

  test('attack: a payer that never paid takes eight places of a relayer at both gateways together', async () => {
    await using own = await uptoCluster()
    const [one, other] = await own.pair()
    const payer = await own.payer(million)
    const signed = await Promise.all(Array.from({ length: 12 }, () => own.sign(payer, one, 1_000n)))
    const ends = await Promise.all(
      signed.map((each, index) => authorizeAt(index % 2 === 0 ? one : other, each)),
    )
    expect(kindsOf(ends).filter((kind) => kind === 'authorized')).toHaveLength(8)
    expect(kindsOf(ends).filter((kind) => kind === 'unavailable')).toHaveLength(4)
  })

  test('attack: one authorization at both gateways at once is taken once', async () => {
    await using own = await uptoCluster()
    const both = await own.pair()
    const payer = await own.payer(10n * million)
    for (let round = 0; round < 5; round++) {
      const transfer = await own.sign(payer, both[0], 1_000n)
      const outcomes = await Promise.all(both.map((seller) => authorizeAt(seller, transfer)))
      expect(kindsOf(outcomes)).toEqual(['authorized', 'refused'])
      const refused = { kind: 'refused', reason: 'permit2_invalid_nonce' }
      expect(outcomes.find(({ kind }) => kind === 'refused')).toMatchObject(refused)
    }
  })

  test("attack: the buyer's own key buys once, whichever gateway is asked", async () => {
    await using own = await uptoCluster()
    const both = await own.pair()
    const payer = await own.payer(10n * million)
    for (let round = 0; round < 5; round++) {
      const ends = await Promise.allSettled(
        both.map(async (seller) =>
          authorizeAt(seller, await own.sign(payer, seller, 1_000n), `key ${round}`),
        ),
      )
      const failed = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason] : []))
      expect(failed).toEqual([new RowsRefusedError('key-used')])
      const taken = ends.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []))
      expect(kindsOf(taken)).toEqual(['authorized'])
    }
  })

  test("attack: the buyer's own key has no ceiling at one and a payment at the other", async () => {
    await using own = await uptoCluster()
    const [one, other] = await own.pair()
    await until(() => other.ledger.lanes.gateways() > 1)
    const payer = await own.payer(10n * million)
    const exact = await own.signExact(payer, 1_000n)
    expect((await authorizeAt(one, await own.sign(payer, one, 1_000n), 'own key')).kind).toBe(
      'authorized',
    )
    // The payment looked for the key before that.
    const purpose = purposeOf({ idempotencyKey: 'own key' })
    const asked = { transfer: exact, purpose, receivedAt: Date.now(), isKeySigned: true }
    const paying = other.settlement.settle(asked, 120_000)
    expect(await failureOf(paying)).toEqual(new RowsRefusedError('key-used'))
    expect(await other.sql('SELECT 1 FROM payments')).toEqual([])
  })

  test('a charge at one gateway gives the rest of its ceiling back at the other', async () => {
    await using own = await uptoCluster()
    const [one, other] = await own.pair()
    const payer = await own.payer(million)
    const first = await authorized(one, await own.sign(payer, one, 900_000n))
    const next = await own.sign(payer, other, 900_000n)
    expect(await authorizeAt(other, next)).toMatchObject({ kind: 'unavailable' })
    const charged = await one.settlement.authorizations.charge(first, cost)
    const paid = await one.settlement.authorizations.settleCharge(charged, { waitMs: 120_000 })
    expect(paid.kind).toBe('confirmed')
    expect((await authorizeAt(other, next)).kind).toBe('authorized')
  })
})

describe.skipIf(!hasPostgres)('a balance that two gateways are asked to use', () => {
  const pay = ({ settlement }: Seller, transfer: ReturnType<typeof signTransfer>) =>
    settlement.settle({ transfer, purpose: purposeOf(), receivedAt: Date.now() }, 120_000)

  test('attack: an exact payment at one gateway does not spend an open ceiling of the other', async () => {
    await using own = await uptoCluster()
    const [one, other] = await own.pair()
    await until(() => one.ledger.lanes.gateways() > 1 && other.ledger.lanes.gateways() > 1)
    const exact = signTransfer(own.network, { amountAtomic: 5_000n })
    const held = await balanceOf(own.net.chain, own.network.asset.address, exact.payer)
    await one.sql(
      `INSERT INTO authorizations SELECT * FROM jsonb_populate_record(NULL::authorizations, $1)`,
      [JSON.stringify(rowOf(exact, held - 4_999n))],
    )
    expect(await pay(other, exact)).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 1 })
    expect(await one.ledger.authorizations.fail('pay_000000000001')).toBe(true)
    expect((await pay(other, exact)).kind).toBe('confirmed')
    expect(own.net.tap.calls.filter(({ method }) => method.startsWith('eth_sendRaw'))).toHaveLength(
      1,
    )
  })

  /** An open ceiling of the payer of a transfer. */
  const rowOf = (transfer: ReturnType<typeof signTransfer>, ceiling: bigint) => ({
    ...{ id: 'pay_000000000001', network: transfer.network, chain_id: transfer.chainId },
    ...{ asset: transfer.asset, payer: transfer.payer, payee, ceiling_atomic: String(ceiling) },
    ...{ facilitator: payee, nonce: `0x${'1'.repeat(64)}`, valid_after: '0' },
    ...{ valid_before: '9999999999', signature: '0x11', product: 'gateway', merchant: 'm' },
    ...{ route: '/r', fingerprint: 'f', resource: 'http://localhost/', bound: false },
    ...{ received_at: 1, known_block: 1, state: 'metered', charge_atomic: '5', units: '{}' },
    ...{ is_delivered: false, truncated: false, created_at: 1 },
  })
})

describe.skipIf(!hasPostgres)('a gateway that dies while it sells by upto', () => {
  test('an authorization of a dead gateway without a charge is void, and its payer may sign again', async () => {
    await using own = await uptoCluster({ dies: true })
    const [one, other] = await own.pair()
    const payer = await own.payer(million)
    const { id } = await authorized(one, await own.sign(payer, one, 900_000n))
    const next = await own.sign(payer, other, 900_000n)
    expect(await authorizeAt(other, next)).toMatchObject({ kind: 'unavailable' })
    await own.kill(one)
    await until(async () => (await stateOf(other, id)) === 'void')
    expect((await authorizeAt(other, next)).kind).toBe('authorized')
  })

  test('a charge of a dead gateway is settled once by the gateway that takes its relayer', async () => {
    await using own = await uptoCluster({ dies: true })
    const [one, other] = await own.pair()
    const paid = () => balanceOf(own.net.chain, own.network.asset.address, payee)
    const before = await paid()
    const payer = await own.payer(million)
    const sold = await authorized(one, await own.sign(payer, one, 900_000n))
    await one.settlement.authorizations.charge(sold, cost)
    await own.kill(one)
    await until(async () => (await other.settlement.findById(sold.id))?.state === 'confirmed')
    expect(await stateOf(other, sold.id)).toBe('sent')
    // Its buyer has no answer yet, so the next request with the credential gets one.
    expect((await other.settlement.findById(sold.id))?.delivery).toBe('none')
    expect(await paid()).toBe(before + cost.amountAtomic)
  })
})

describe.skipIf(!hasPostgres)('an account that a gateway gives to one that joins', () => {
  test('a charge that named it before is settled by its next holder, and no offer names it', async () => {
    await using own = await uptoCluster()
    const { chain } = own.net
    const one = await own.start()
    const named = (seller: Seller) =>
      seller.settlement.authorizations.facilitators(own.network.id, 1n)
    await until(() => named(one).length === 2)
    const payer = await own.payer(10n * million)
    const relayers = named(one)
    const sold = await Promise.all(
      [...relayers, ...relayers].map(async (each) =>
        authorized(one, await own.sign(payer, one, 1_000n, each)),
      ),
    )
    const settle = async (authorization: Authorization) => {
      const { charge, settleCharge } = one.settlement.authorizations
      return settleCharge(await charge(authorization, cost), { waitMs: 120_000 })
    }
    await setAutomine(chain, false)
    const open = sold.slice(0, 2).map(settle)
    const sends = () =>
      own.net.tap.calls.filter(({ method }) => method.startsWith('eth_sendRaw')).length
    await until(() => sends() >= 2)
    const other = await own.start()
    // Both have an open transaction, so one of them takes nothing new.
    await until(() => named(one).length === 1)
    const given = relayers.find((each) => !named(one).includes(each))
    const late = sold.slice(2).find(({ transfer }) => transfer.upto?.facilitator === given)
    if (!late) throw new Error('no ceiling names the account')
    const charged = settle(late)
    await setAutomine(chain, true)
    await mine(chain)
    expect(kindsOf(await Promise.all(open))).toEqual(['confirmed', 'confirmed'])
    expect((await charged).kind).toBe('confirmed')
    await until(() => named(other).length === 1)
    expect([...named(one), ...named(other)].toSorted()).toEqual(relayers.toSorted())
    expect(named(other)[0] === given).toBe(true)
    const settled = ({ events }: Seller) =>
      events.filter(({ event }) => event === 'transaction-included').length
    await until(() => settled(other) === 1)
    expect(settled(one)).toBe(2)
  })
})
