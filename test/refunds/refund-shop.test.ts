import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi } from 'viem'
import { refund } from '../../src/cli/operate/refund'
import { sales } from '../../src/cli/operate/sales'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { operatorOf } from '../harness/admin'
import { exitCode } from '../harness/command'
import { payout } from '../harness/config'
import { buy, merchants, type Shop, startShop, untilEnded } from '../harness/shop'
import { commandEnv } from '../harness/test-ledger'
import { until } from '../harness/world'

// Refunds as buyers and operators meet them: problems, the lookup, pages, the command and the books.

const network = 'eip155:8453'
const refunder = account(6)
const env = { REFUND_KEY: refunder.privateKey }
const automatic = (text: string) =>
  text.replace('slug = "shop"\n', 'slug = "shop"\nrefund = "undelivered"\n')
const token = parseAbi(['function mint(address to, uint256 value)'])

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    env,
    edit: automatic,
    adjust: (config) => ({
      ...config,
      // Gas of a local chain would cost more than a request.
      networks: config.networks.map((each) => ({ ...each, ethPriceUsd: 1 })),
    }),
  })
  const args = [refunder.address, 1_000_000n] as const
  const data = encodeFunctionData({ abi: token, functionName: 'mint', args })
  const to = shop.config.networks.find(({ id }) => id === network)?.asset.address
  if (to === undefined) throw new Error('no asset')
  await execute(chain(), [{ from: account(9).address, to, data }])
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
})

const item = () => `${shop.url}/m/shop/item`
const chain = () => {
  const found = shop.chains[network]
  if (found === undefined) throw new Error('no chain')
  return found
}
const held = () => shop.balance(network, account(1).address)
const newest = () => String(shop.rows('SELECT max(id) AS id FROM payments')[0]?.id)
const stateOf = async (id: string) => (await shop.ledger.refunds.find(id))?.state

/** Buys, and waits until the delivery is recorded. */
async function bought(): Promise<string> {
  expect((await buy(item())).status).toBe(200)
  await untilEnded(shop)
  await mine(chain(), 17)
  return newest()
}

/** The figures of `turnpike sales` for the merchant. */
async function books(): Promise<Record<string, unknown>> {
  const lines: string[] = []
  const given = { json: true, since: '2h', dataDir: shop.dataDir, env: commandEnv(shop.dataDir) }
  await exitCode(sales, { ...given, now: shop.now, out: (line) => void lines.push(line) })
  const report = JSON.parse(lines.join('\n')) as { sales: Record<string, unknown>[] }
  return report.sales.find(({ merchant }) => merchant === 'shop') ?? {}
}

/** The output of `turnpike refund` beside the service. `waitMs`: how long it waits for that. */
async function command(
  operand: string,
  options: Record<string, unknown> = {},
  waitMs: number | undefined = undefined,
) {
  const file = `${shop.dataDir}/merchants.toml`
  const shipped = await Bun.file(`${import.meta.dir}/../../merchants.toml`).text()
  await Bun.write(file, automatic(shipped + merchants))
  const lines: string[] = []
  const code = await exitCode((given: Parameters<typeof refund>[0]) => refund(given, waitMs), {
    ...{ operand, verb: operand, file, dataDir: shop.dataDir, ...options },
    env: { ...env, PAYOUT: payout, ASSISTANT_KEY: 'key', ...commandEnv(shop.dataDir) },
    out: (line: string) => void lines.push(line),
  })
  return { code, text: lines.join('\n') }
}

describe('an answer that was never delivered', () => {
  test('its problem says when the money goes back, and then it does', async () => {
    shop.upstream.script = (_, reply) => reply.send(500, '{}')
    const before = await held()
    const failed = await buy(item())
    type Failure = {
      detail: string
      redeem: { token: string; until: string }
      refund: { after: string; payment: string; token: string }
    }
    const { detail, redeem, refund: promised } = (await failed.json()) as Failure
    expect(failed.status).toBe(502)
    expect(promised.after).toBe(redeem.until)
    expect(detail).toEndWith(`If you do not fetch it by ${redeem.until}, the money is sent back.`)
    const look = async () => {
      const url = `${shop.url}/api/payments/${promised.payment}`
      const answer = await fetch(url, { headers: { 'payment-token': promised.token } })
      return ((await answer.json()) as { refund?: Record<string, unknown> }).refund
    }
    expect(await look()).toBeUndefined()
    const page = await (await fetch(`${shop.url}/merchants/shop`)).text()
    expect(page).toContain('its money comes back to the wallet after a day')
    await mine(chain(), 17)
    // The sweep of a start finds it, as that of each minute does.
    shop.advance(26 * 3_600_000)
    await shop.restart()
    await until('the money is back', async () => (await look())?.status === 'refunded')
    expect(await held()).toBe(before)
    const made = await look()
    expect(made).toMatchObject({ amount: '0.005000', amountAtomic: '5000', reason: 'undelivered' })
    expect(made?.transaction).toMatch(/^0x[0-9a-f]{64}$/)
    shop.upstream.script = undefined
    const asked = shop.upstream.requests.length
    const late = await fetch(item(), { headers: { 'payment-redeem': redeem.token } })
    expect([late.status, await late.json()]).toMatchObject([
      410,
      {
        code: 'redeem-exhausted',
        detail: 'This payment was refunded: 0.005000 went back to the payer.',
        refund: made,
      },
    ])
    expect(shop.upstream.requests).toHaveLength(asked)
    shop.advance(-26 * 3_600_000)
    expect(await books()).toMatchObject({ undelivered: 0, refunds: 1, refundedAtomic: '5000' })
  })

  test('a payment with a refund that waits can no longer be fetched', async () => {
    shop.upstream.script = (_, reply) => reply.send(500, '{}')
    const failed = (await (await buy(item())).json()) as { redeem: { token: string } }
    const id = newest()
    const { code, text } = await command(id, { amount: '0.001' }, 0)
    expect([code, text]).toEqual([0, expect.stringContaining('reorg_depth blocks deep')])
    shop.upstream.script = undefined
    const late = await fetch(item(), { headers: { 'payment-redeem': failed.redeem.token } })
    expect([late.status, await late.json()]).toMatchObject([
      410,
      { refund: { amount: '0.001000' } },
    ])
    await mine(chain(), 17)
    await until('it is made', async () => (await stateOf(id)) === 'refunded')
  })
})

describe('an operator', () => {
  test('sends a part of a payment back at /admin, once', async () => {
    const id = await bought()
    const before = await held()
    const { read, act, post, cookie } = await operatorOf(shop.url, shop.secrets.adminToken)
    expect(await read(`/admin/payments/${id}`)).toContain('Send the money back')
    const page = await read(`/admin/actions/refund?subject=${id}`)
    expect(page).toContain(account(1).address)
    expect(page).toContain('name="amount" value="0.005000"')
    // A form of another site, and amounts that are none.
    const forged = await post('/admin/actions/refund', { subject: id, amount: '0.002' }, cookie)
    expect(forged.status).toBe(403)
    for (const amount of ['', '0', '-1', '1e3', '0.0000001', '0.006', 'x'.repeat(50)])
      await act('refund', id, { amount })
    expect(await stateOf(id)).toBeUndefined()
    expect(await act('refund', id, { amount: '0.002', note: '<b>sorry</b>' })).toBe(303)
    await until('it is made', async () => (await stateOf(id)) === 'refunded')
    expect((await held()) - before).toBe(2_000n)
    const story = await read(`/admin/payments/${id}`)
    expect(story).toContain('&lt;b&gt;sorry&lt;/b&gt;')
    expect(story).not.toContain('Send the money back')
    await act('refund', id, { amount: '0.002' })
    expect(await read('/admin')).toContain('has a refund already')
    expect(await read('/admin/refunds')).toContain(`/admin/payments/${id}`)
    expect((await held()) - before).toBe(2_000n)
  })

  test('sends a payment back by the command, and lists it', async () => {
    const id = await bought()
    const before = await held()
    const { code, text } = await command(id, { note: 'empty' })
    expect([code, text]).toEqual([0, expect.stringContaining('refunded')])
    expect((await held()) - before).toBe(5_000n)
    const again = await command(id)
    expect([again.code, again.text]).toEqual([1, expect.stringContaining('at most one')])
    const listed = await command('list', { json: true })
    const all = JSON.parse(listed.text) as { payment: string }[]
    expect(all.find(({ payment }) => payment === id)).toMatchObject({
      payment: id,
      status: 'refunded',
      note: 'empty',
    })
    expect((await command('list')).text).toContain(id)
    expect((await command(id, { retry: true })).text).toContain('only one that has failed')
  })

  test('error: a request that cannot be made names the cause, and nothing is written', async () => {
    const id = await bought()
    const faults: [string, Record<string, unknown>, RegExp][] = [
      ['pay_00', {}, /There is no payment/],
      ['x', {}, /is not the id of a payment/],
      [id, { amount: '0.006' }, /above that of the payment, 0\.005000/],
      [id, { amount: '0' }, /must be a decimal above 0/],
      [id, { note: 'two\nlines' }, /one line/],
      [id, { retry: true }, /has no refund/],
      [id, { retry: true, amount: '0.001' }, /leave --amount/],
      ['list', { amount: '1' }, /refund list takes no/],
    ]
    for (const [operand, options, message] of faults) {
      const { code, text } = await command(operand, options)
      expect([operand, code, text]).toEqual([operand, 1, expect.stringMatching(message)])
    }
    expect(await stateOf(id)).toBeUndefined()
  })
})
