import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from 'bun:test'
import { balanceOf } from '../../src/demo/chains'
import { outcomeOf } from '../harness/outcome'
import { hasPostgres } from '../harness/postgres'
import { type Gateway, isReady, request, startProcesses } from '../harness/processes'
import { networkOf } from '../harness/settlement'
import { price, seller } from '../harness/target'
import { until } from '../harness/world'

/** Two processes of the program over one PostgreSQL, whose connections and time are disturbed. */

setDefaultTimeout(240_000)

let own: Awaited<ReturnType<typeof startProcesses>>
let one: Gateway
let other: Gateway
beforeAll(async () => {
  if (!hasPostgres) return
  own = await startProcesses()
  one = await own.start()
  other = await own.start()
})
afterAll(() => own?.stop())

const paid = () => {
  const { chain } = own.usdc
  return balanceOf(chain, networkOf(chain.url, 'usdc').asset.address, seller)
}
const sends = ({ tap }: Gateway) =>
  tap.calls.filter(({ method }) => method.startsWith('eth_sendRaw')).length

describe.skipIf(!hasPostgres)('two gateways', () => {
  test('a payment that one gateway did not deliver is redeemed at the other', async () => {
    const before = await paid()
    own.upstream.answer = () => new Response('broken', { status: 500 })
    const failed = await request(one, await own.sign(one, 1))
    own.upstream.answer = undefined
    expect(failed.status).toBe(502)
    const { redeem } = (await failed.json()) as { redeem: { token: string } }
    const redeemed = await request(other, { 'payment-redeem': redeem.token })
    expect([redeemed.status, await redeemed.json()]).toEqual([200, { goods: '/base/get' }])
    expect(await paid()).toBe(before + price)
    // The end of a delivery is recorded after its answer.
    let again = 409
    await until('the delivery is recorded', async () => {
      again = (await request(one, { 'payment-redeem': redeem.token })).status
      return again !== 409
    })
    expect(again).toBe(410)
    expect(own.upstream.requests).toHaveLength(2)
  })

  test('error: without its database a gateway asks for no payment, and the other one sells', async () => {
    const headers = await own.sign(one, 2)
    await using away = one.proxy.refuse()
    expect(away).toBeDefined()
    await until('it is not ready', async () => !(await isReady(one)))
    for (const given of [{}, headers]) {
      const refused = await request(one, given)
      expect([refused.status, Number(refused.headers.get('retry-after')) > 0]).toEqual([503, true])
    }
    expect((await request(other, headers)).status).toBe(200)
  })

  test('attack: a gateway that is paused before it sends wakes after the takeover, and sends nothing', async () => {
    await until('both are ready', async () => (await isReady(one)) && (await isReady(other)))
    const before = await paid()
    const headers = await own.sign(one, 4)
    const sent = sends(one)
    const paused = Promise.withResolvers<void>()
    one.tap.intercept = ({ method }) => {
      if (method === 'eth_call') {
        // Pause it while the check of the payment waits for its answer.
        one.signal('SIGSTOP')
        paused.resolve()
      }
      return undefined
    }
    const asking = request(one, headers).catch(() => undefined)
    await paused.promise
    one.tap.intercept = undefined
    const accounts = "SELECT 1 FROM lanes WHERE relayer <> 'keeper' AND holder IS NOT NULL"
    const gateways = 'SELECT 1 FROM gateways'
    await until('the other one has all accounts', async () => {
      const rows = await Promise.all([own.sql(gateways), own.sql(accounts)])
      return rows[0].length === 1 && rows[1].length === 4
    })
    one.signal('SIGCONT')
    expect(await one.exited).toBe(70)
    expect((await asking)?.status).not.toBe(200)
    expect(sends(one)).toBe(sent)
    expect((await request(other, headers)).status).toBe(200)
    expect(await paid()).toBe(before + price)
    const rows = await own.sql("SELECT 1 FROM transactions WHERE state <> 'mined'")
    expect(rows).toEqual([])
  })

  test('a gateway has given its accounts back when its stop has ended', async () => {
    const ids = async () => (await own.sql('SELECT id FROM gateways')).map(({ id }) => id)
    const others = await ids()
    const stopped = await own.start()
    expect(await ids()).not.toEqual(others)
    stopped.signal('SIGTERM')
    expect(await stopped.exited).toBe(0)
    // The lanes of a row that is deleted have no holder; one that stays is removed after ten seconds.
    expect(await ids()).toEqual(others)
  })

  test('error: a stop ends although the database does not answer', async () => {
    // A request that is counted in the database.
    expect((await request(other)).status).toBe(402)
    void other.proxy.silence(3_600_000)
    other.signal('SIGTERM')
    expect(await other.exited).toBe(0)
  })

  test('error: a connection whose packets are dropped is closed, and the sale continues', async () => {
    // Alone: on a busy machine another gateway could take it for dead before it has given them up.
    const alone = await own.start()
    const gone = 'SELECT 1 FROM gateways'
    await until('the others are gone', async () => (await own.sql(gone)).length === 1)
    await until('it is ready', () => isReady(alone))
    const before = await paid()
    const headers = await own.sign(alone, 3)
    const left = alone.proxy.drop()
    const dropped = left()
    await until('the same credential buys', async () => {
      const { status } = await request(alone, headers)
      expect([200, 409, 503]).toContain(status)
      return status === 200
    })
    // Those that nothing has used meanwhile are given up at their next use.
    expect(left()).toBeLessThan(dropped)
    expect(await paid()).toBe(before + price)
  })

  test('error: after a loss that one gateway has noted the others end, and a start needs --accept-loss', async () => {
    const running = await own.start()
    await own.sql("INSERT INTO meta (key, value) VALUES ('went-back', '2026-11-24 00:00:00+00')")
    expect(await running.exited).toBe(70)
    expect(await outcomeOf(own.start())).toThrow(
      /lacks commits that it had acknowledged, found at 2026-11-24 .* --accept-loss\n$/,
    )
    const accepted = await own.start(['--accept-loss'])
    const headers = await own.sign(accepted, 5)
    expect((await request(accepted, headers)).status).toBe(200)
    expect(await own.sql("SELECT 1 FROM meta WHERE key = 'went-back'")).toEqual([])
  })
})
