import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { dirname } from 'node:path'
import { toClientEvmSigner } from '@x402/evm'
import { BatchSettlementEvmScheme } from '@x402/evm/batch-settlement/client'
import { wrapFetchWithPayment, x402Client } from '@x402/fetch'
import { createPublicClient, http } from 'viem'
import { account, type DemoAccount } from '../../src/demo/accounts'
import { base, type ChannelShop, channelTerms, startChannelShop } from '../harness/channel-shop'
import { executable } from '../harness/executable'
import { newState, removeStates, startWallet } from '../harness/mcp-wallet'

/** Stock clients of payment channels, as they are, and those of turnpike, at a gateway. */

let shop: ChannelShop
beforeAll(async () => {
  const edit = (text: string) =>
    text.replace(channelTerms, '').concat(`
[networks."eip155:8453".channels]
min_deposit = "0.25"
claim_above = "5"
`)
  shop = await startChannelShop({ edit })
})
afterAll(async () => {
  await shop?.stop()
  removeStates()
})
beforeEach(() => {
  shop.upstream.script = undefined
})

const rpc = () => shop.chains[base]?.url ?? ''
const held = (buyer: DemoAccount) => shop.balance(base, buyer.address)
const transactions = () => shop.rows(`SELECT kind FROM transactions WHERE kind = 'channel'`).length

/** `@x402/fetch` with the scheme of channels and its defaults: storage in memory, and salt 0. */
function stockClient(buyer: DemoAccount) {
  const node = createPublicClient({ transport: http(rpc()) })
  const signer = toClientEvmSigner(buyer.local(), {
    readContract: (args) => node.readContract({ ...args, args: args.args ?? [] }),
  })
  const scheme = new BatchSettlementEvmScheme(signer)
  const sent: string[] = []
  const record = async (input: string | URL | Request, init?: RequestInit) => {
    const request = new Request(input as string, init)
    const header = request.headers.get('payment-signature')
    if (header !== null) sent.push(JSON.parse(atob(header)).payload.type)
    return fetch(request)
  }
  const buy = wrapFetchWithPayment(
    Object.assign(record, { preconnect: fetch.preconnect }),
    new x402Client().register(base, scheme),
  )
  const pay = async (path: string, init?: RequestInit) => {
    const response = await buy(shop.at(path), init)
    return [response.status, await response.text()] as const
  }
  return { scheme, sent, pay }
}

const ok = [200, '{"ok":true}'] as const

test('a stock client makes 60 requests by two deposits, and gets the rest back by a GET', async () => {
  const buyer = account(1)
  const { pay, scheme, sent } = stockClient(buyer)
  const before = await held(buyer)
  const earlier = transactions()
  for (let n = 0; n < 59; n++) expect(await pay('/m/one/item')).toEqual(ok)
  expect(await pay('/m/one/posted', { method: 'POST' })).toEqual(ok)
  expect(sent.filter((type) => type === 'deposit')).toHaveLength(2)
  expect(sent).toHaveLength(60)
  expect(await held(buyer)).toBe(before - 500_000n)
  expect(transactions()).toBe(earlier + 2)
  // The route takes POST only, and its refund comes as a GET.
  const refund = await scheme.refund(shop.at('/m/one/posted'))
  expect(refund).toMatchObject({ success: true, amount: '200000' })
  expect(await held(buyer)).toBe(before - 300_000n)
})

test('a stock client that lost its storage is corrected, and loses nothing', async () => {
  const buyer = account(2)
  const first = stockClient(buyer)
  for (let n = 0; n < 3; n++) expect(await first.pay('/m/one/other')).toEqual(ok)
  const second = stockClient(buyer)
  expect(await second.pay('/m/one/other')).toEqual(ok)
  // Its first voucher is for what the chain shows, which is nothing.
  expect(second.sent).toEqual(['voucher', 'voucher'])
  expect(await first.pay('/m/one/other')).toEqual(ok)
  expect(await second.scheme.refund(shop.at('/m/one/other'))).toMatchObject({ amount: '240000' })
})

async function run(state: string, args: readonly string[], buyer = account(3)) {
  const child = Bun.spawn([executable, ...args, '--rpc', rpc()], {
    env: { PATH: process.env.PATH ?? '', PAY_KEY: buyer.privateKey, XDG_STATE_HOME: state },
    ...{ stdin: 'ignore', stdout: 'pipe', stderr: 'pipe' },
  })
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  return { code, out, err }
}

test('turnpike pay buys by a channel with receipts, by use and as a stream, and closes it', async () => {
  const [buyer, state] = [account(3), dirname(dirname(newState()))]
  const before = await held(buyer)
  const pay = (path: string, ...more: string[]) =>
    run(state, ['pay', shop.at(path), '--scheme', 'channel', ...more])
  const first = await pay('/m/one/item', '--deposit', '0.3')
  expect(first).toMatchObject({ code: 0, out: '{"ok":true}' })
  expect(first.err).toContain('the published receipt key')
  const second = await pay('/m/one/item')
  expect(second.err).toContain('the published receipt key')
  expect(second.err).toContain('charge     0.005000 USDC\nchannel    0.290000 USDC are left\n')
  const usage = '{"usage":{"prompt_tokens":7,"completion_tokens":20}}'
  shop.upstream.script = (_, reply) => reply.send(200, usage)
  const body = '{"model":"m","max_tokens":100,"messages":[]}'
  const byUse = await pay('/m/model/chat', '--body', body, '--max', '0.1')
  expect(byUse).toMatchObject({ code: 0, out: usage })
  expect(byUse.err).toContain('charge     0.000707 USDC\nchannel    0.289293 USDC are left\n')
  const events = ['data: {"choices":[]}\n\n', `data: ${usage}\n\n`, 'data: [DONE]\n\n']
  shop.upstream.script = (_, reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' })
    for (const event of events) reply.chunk(event)
    reply.end()
  }
  const stream = await pay('/m/model/chat', '--body', body, '--max', '0.1')
  expect(stream).toMatchObject({ code: 0, out: events.join('') })
  expect(stream.err).toContain('charge     0.000707 USDC\n')
  shop.upstream.script = undefined
  // The gateway says by a corrective 402 what the stream has cost.
  expect((await pay('/m/one/item')).err).toContain('channel    0.283586 USDC are left\n')
  const closed = await run(state, ['channels', 'close'])
  expect(closed.out).toMatch(/^0\.283586 USDC came back, in transaction 0x[0-9a-f]{64}\n$/)
  expect(await held(buyer)).toBe(before - 16_414n)
})

test('an answer that failed is not charged, and its voucher comes again', async () => {
  const state = dirname(dirname(newState()))
  const pay = () => run(state, ['pay', shop.at(), '--scheme', 'channel', '--deposit', '0.25'])
  await pay()
  shop.upstream.script = (_, reply) => reply.send(503)
  expect(await pay()).toMatchObject({ code: 1 })
  shop.upstream.script = undefined
  expect((await pay()).err).toContain('channel    0.240000 USDC are left\n')
})

test('turnpike mcp uses channels within its limits, several at once, and else pays exactly', async () => {
  const [buyer, state] = [account(4), newState()]
  const options = { url: shop.url, buyer, state, rpc: rpc(), perDay: '0.51' }
  const wallet = startWallet({ ...options, deposit: '0.25' })
  await wallet.list()
  const before = await held(buyer)
  const calls = await Promise.all([wallet.call('one-other'), wallet.call('one-item')])
  for (const { isError, text } of calls) {
    expect(isError).toBe(false)
    expect(text).toContain('from a channel with 0.24')
    expect(text).toContain('whose deposit counts as spent')
  }
  // Both ran at once, so that each had a channel with a deposit of its own.
  expect(await held(buyer)).toBe(before - 500_000n)
  expect(wallet.spending.today().spentMicros).toBe(500_000n)
  expect((await wallet.call('one-other')).text).toContain(
    '0.002000 USDC on eip155:8453 from a channel',
  )
  expect(wallet.spending.today().spentMicros).toBe(500_000n)
  expect((await wallet.call('turnpike_budget')).text).toContain('Today: 0.50 USD in 2 payments')
  // A limit that allows no deposit pays each call by itself, as does a user that wants no channel.
  for (const other of [
    startWallet({ ...options, state: newState() }),
    startWallet({ ...options, scheme: 'exact' }),
  ]) {
    await other.list()
    const exact = await other.call('one-other')
    expect(exact.text).toContain('Cost: 0.002000 USDC on eip155:8453, transaction 0x')
  }
  const env = dirname(state)
  const closed = await run(env, ['channels', '--json', '--state', state], buyer)
  const ids = (JSON.parse(closed.out) as { id: string }[]).map(({ id }) => id)
  expect(ids).toHaveLength(2)
  for (const id of ids)
    expect((await run(env, ['channels', 'close', id, '--state', state], buyer)).out).toContain(
      'came back',
    )
  // What came back may be spent again today.
  expect(wallet.spending.today().spentMicros).toBe(2_000n + 2_000n + 5_000n + 2_000n)
  expect(await held(buyer)).toBe(before - 2_000n * 4n - 5_000n)
})
