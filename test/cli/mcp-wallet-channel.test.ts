import { afterAll, afterEach, beforeEach, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import * as Token from '../../src/chain/token'
import { openChannelFiles } from '../../src/cli/buy/channel-files'
import { channels } from '../../src/cli/buy/channels'
import * as Terms from '../../src/cli/buy/Terms'
import * as Voucher from '../../src/cli/buy/Voucher'
import { account } from '../../src/demo/accounts'
import * as Channel from '../../src/protocol/Channel'
import { encodeJson } from '../../src/protocol/Header'
import { exitCode } from '../harness/command'
import { offer, offers, paid, payee, problem, startFake } from '../harness/fake-gateway'
import { newState, removeStates, startWallet, type WalletOptions } from '../harness/mcp-wallet'
import { until } from '../harness/world'

/** A call that a voucher was sent for is paid by nothing else. */

const word = (value: bigint) => value.toString(16).padStart(64, '0')
const selectorOf = ({ data }: { data: Hex }) => data.slice(0, 10)
const [ofState, ofWithdrawal, ofNonce] = Channel.stateCalls(`0x${'00'.repeat(32)}`).map(selectorOf)
const ofBalance = selectorOf(Token.balanceOf(payee, payee))

/** A node of a chain on which a wallet has 10 USDC and every channel the same balance. */
function startNode() {
  const chain = {
    balanceAtomic: 0n,
    isUsed: false,
    /** Unix seconds of the last block. */
    time: 0,
    isSilent: false,
    /** Answers wait for it. */
    open: Promise.resolve(),
    waiting: 0,
  }
  const answer = (method: string, data: string) => {
    if (method === 'eth_chainId') return '0x2105'
    if (method === 'eth_getBlockByNumber')
      return { number: '0x1', timestamp: `0x${chain.time.toString(16)}` }
    const selector = data.slice(0, 10)
    if (selector === ofState) return `0x${word(chain.balanceAtomic)}${word(0n)}`
    if (selector === ofWithdrawal) return `0x${word(0n)}${word(0n)}`
    if (selector === ofNonce) return `0x${word(0n)}`
    if (selector === ofBalance) return `0x${word(10_000_000n)}`
    return `0x${word(chain.isUsed ? 1n : 0n)}`
  }
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    async fetch(request) {
      const { id, method, params } = (await request.json()) as Asked
      if (chain.isSilent) return new Response('', { status: 503 })
      chain.waiting++
      await chain.open
      return Response.json({ jsonrpc: '2.0', id, result: answer(method, params[0]?.data ?? '') })
    },
  })
  const url = `http://127.0.0.1:${server.port}`
  return { chain, url, stop: () => server.stop(true) }
}
type Asked = { id: number; method: string; params: { data?: string }[] }

let node: ReturnType<typeof startNode>
let fake: ReturnType<typeof startFake>
beforeEach(() => {
  node = startNode()
  fake = startFake(selling)
})
afterEach(async () => {
  await fake.stop()
  await node.stop()
})
afterAll(removeStates)

const byChannel = (minDeposit = '50000', extra: object = {}) =>
  offer('5000', {
    scheme: 'batch-settlement',
    extra: {
      ...{ receiverAuthorizer: account(6).address, withdrawDelay: 900, minDeposit },
      ...{ name: 'USD Coin', version: '2', assetTransferMethod: 'eip3009', ...extra },
    },
  })
const both = () => [byChannel(), offer('5000')]
const selling = (_: unknown, paying: boolean) => (paying ? paid('goods') : offers(both()))
const wallet = (options: Partial<WalletOptions> = {}) =>
  startWallet({ url: fake.url, rpc: node.url, patienceMs: 1, ...options })
const none = { maxClaimableAmount: '0', signature: '' }
type Payment = {
  accepted: { scheme: string }
  payload: {
    type?: string
    deposit?: { amount: string }
    voucher: { maxClaimableAmount: string; signature: string; channelId: Hex }
  }
}
const payments = () => fake.payments() as unknown as Payment[]
const sumOf = ({ payload }: Payment) => Number(payload.voucher.maxClaimableAmount)
const kinds = () => payments().map(({ accepted, payload }) => payload.type ?? accepted.scheme)
const lost = () => new Response('gateway timeout', { status: 504 })
/** A 402 to a voucher, as of a server that says it charged all of the highest one. */
const corrected = () => {
  const [best] = payments().toSorted((a, b) => sumOf(b) - sumOf(a))
  const { maxClaimableAmount: signed, signature } = best?.payload.voucher ?? none
  const channelState = { chargedCumulativeAmount: signed }
  const voucherState = { signedMaxClaimable: signed, signature }
  const answer = offers([byChannel('1900000', { channelState, voucherState }), offer('5000')])
  answer.structuredContent.error = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  return answer
}
/** A channel of the wallet with some money, in the files of `state`. */
async function fund(state: string, balanceAtomic: bigint) {
  const [terms] = Terms.ofRequired({ accepts: [byChannel()] })
  if (terms === undefined) throw new Error('no terms')
  const config = Voucher.configOf(terms, account(1).address, 0)
  const { network } = terms
  const known = { network, config, url: fake.url, chargedAtomic: 0n, isClosing: false }
  await openChannelFiles(state).use(Voucher.idOf(known), async ({ save }) =>
    save({ ...known, balanceAtomic, deposit: undefined, sent: [] }),
  )
  node.chain.balanceAtomic = balanceAtomic
}
/** `turnpike channels close`, of a gateway that refunds all of the balance. */
async function close(state: string) {
  fake.http = ({ headers }) => {
    const required = encodeJson({ x402Version: 2, accepts: [byChannel()] })
    if (!headers.has('payment-signature'))
      return new Response('', { status: 402, headers: { 'payment-required': required } })
    node.chain.balanceAtomic = 0n
    const settled = encodeJson({ success: true, transaction: `0x${'ab'.repeat(32)}` })
    return new Response('', { headers: { 'payment-response': settled } })
  }
  const lines: string[] = []
  const code = await exitCode(channels, {
    ...{ verb: 'close', operand: 'close', state, rpc: node.url },
    ...{ env: { PAY_KEY: account(1).privateKey }, out: (line: string) => void lines.push(line) },
  })
  return { code, text: lines.join('\n') }
}
/** What counts against the limit of the day. */
const spent = ({ spending }: ReturnType<typeof wallet>) => spending.today().spentMicros

test('attack: a call whose answer was lost sends the same voucher, and no other payment', async () => {
  fake.answer = (_, paying) => (paying ? lost() : offers(both()))
  // No second deposit fits into the day.
  const options = { state: newState(), perDay: '0.06' }
  const { call, spending } = wallet(options)
  expect((await call('a')).text).toContain('A voucher of 0.005000 USDC is signed. Call the same')
  Object.assign(node.chain, { balanceAtomic: 50_000n, isUsed: true })
  await call('a')
  // Neither the options nor the state of another process change that.
  await wallet({ ...options, scheme: 'exact' }).call('a')
  expect((await call('turnpike_budget')).text).toContain('its end is not known: a with {}, 0.005')
  fake.answer = selling
  expect((await call('a')).text).toContain('0.05 of at most 0.06 USD')
  expect(kinds()).toEqual(['deposit', 'deposit', 'deposit', 'deposit'])
  expect(new Set(payments().map((each) => JSON.stringify(each))).size).toBe(1)
  expect(spending.today()).toEqual({ spentMicros: 50_000n, payments: 1 })
  expect(spending.unfinished()).toEqual([])
})

test('attack: a call whose voucher was refused is paid by that channel only', async () => {
  const refused = problem('verification-failed')
  fake.answer = (_, paying) => (paying ? refused : offers(both()))
  const { call, spending } = wallet({ state: newState() })
  expect((await call('a')).text).toContain('Nothing was charged.')
  fake.answer = (_, paying) => (paying ? paid('goods') : offers([offer('5000')]))
  const told = await call('a')
  expect(told.text).toStartWith('The gateway does not offer it now. A voucher of the channel 0x')
  expect(kinds()).toEqual(['deposit'])
  // The channel was closed, so nothing can be claimed by the voucher.
  spending.leave(payments()[0]?.payload.voucher.channelId ?? '')
  expect((await call('a')).isError).toBe(false)
  expect(kinds()).toEqual(['deposit', 'exact'])
})

test('attack: a call is paid by a channel only, when that fails after its first voucher', async () => {
  const state = newState()
  await fund(state, 9000n)
  const { call } = wallet({ state, deposit: '0.04' })
  fake.answer = (_, paying) => {
    node.chain.isSilent = paying
    return paying ? corrected() : offers(both())
  }
  expect((await call('a')).text).toContain('so nothing else pays for it')
  node.chain.isSilent = false
  fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
  expect((await call('a')).text).toContain('which is above --deposit')
  expect(kinds()).toEqual(['voucher', 'voucher'])
})

test('attack: no deposit is above the limit for deposits, whatever a correction says', async () => {
  const state = newState()
  await fund(state, 9000n)
  fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
  await wallet({ state, perCall: '0.01', deposit: '0.005' }).call('a')
  expect(payments().map(({ payload }) => payload.deposit?.amount)).toEqual([undefined])
})

test('attack: equal calls of two processes at once are paid by one channel', async () => {
  const state = newState()
  const options = { state, scheme: 'channel' as const }
  const [first, second] = [wallet(options), wallet(options)]
  const gate = Promise.withResolvers<void>()
  node.chain.open = gate.promise
  const calls = [first.call('a'), second.call('a')]
  await until('each reads a channel of its own', () => node.chain.waiting === 2)
  gate.resolve()
  const answers = await Promise.all(calls)
  expect(answers.map(({ isError }) => isError).toSorted()).toEqual([false, true])
  expect(kinds()).toEqual(['deposit'])
})

test('attack: a call is not paid by a channel while another process pays it otherwise', async () => {
  const state = newState()
  fake.answer = (_, paying) => (paying ? problem('settlement-pending') : offers(both()))
  const gate = Promise.withResolvers<void>()
  node.chain.open = gate.promise
  const waiting = wallet({ state }).call('a')
  await until('the wallet reads the chain', () => node.chain.waiting > 0)
  await wallet({ state, scheme: 'exact' }).call('a')
  gate.resolve()
  await waiting
  expect(new Set(kinds())).toEqual(new Set(['exact']))
  expect(new Set(payments().map((each) => JSON.stringify(each))).size).toBe(1)
})

test('attack: a deposit that may arrive after its channel was closed counts, and its call has no other payment', async () => {
  const state = newState()
  await fund(state, 3000n)
  fake.answer = (_, paying) => (paying ? lost() : offers(both()))
  const buyer = wallet({ state })
  await buyer.call('a')
  const closed = await close(state)
  expect(closed.text).toContain('0.003000 USDC came back')
  expect(closed.text).toContain('A deposit of 0.050000 USDC is signed, and may arrive until 20')
  expect(spent(buyer)).toBe(50_000n)
  const other = wallet({ state, scheme: 'exact' })
  await other.call('a')
  expect(kinds()).toEqual(['deposit', 'deposit'])
  // Its time is over: the channel stays empty, so its vouchers are void.
  node.chain.time = Math.floor(Date.now() / 1000) + 86_400
  expect(await close(state)).toEqual({ code: 0, text: 'Nothing is left in this channel.' })
  expect(spent(buyer)).toBe(0n)
  fake.answer = selling
  expect((await other.call('a')).text).toStartWith('goods')
  expect(kinds()).toEqual(['deposit', 'deposit', 'exact'])
  // Its voucher is not paid by the deposit of another call.
  for (let count = 0; count < 2; count++) await close(state)
  expect((await buyer.call('b')).text).toStartWith('goods')
  const [first, , , last] = payments().map(({ payload }) => payload.voucher?.channelId)
  expect(kinds()[3]).toBe('deposit')
  expect(last).not.toBe(first)
})

test('attack: a deposit of which a gateway says falsely that it has arrived counts after a close', async () => {
  const state = newState()
  await fund(state, 3000n)
  const buyer = wallet({ state })
  expect((await buyer.call('a')).text).toStartWith('goods')
  fake.answer = (_, paying) => (paying ? lost() : offers(both()))
  await buyer.call('b')
  expect((await close(state)).text).toContain('may arrive until 20')
  expect(spent(buyer)).toBe(50_000n)
  await wallet({ state, scheme: 'exact' }).call('b')
  expect(kinds()).toEqual(['deposit', 'voucher', 'voucher'])
})

test('what comes back of a deposit that arrived today counts no more', async () => {
  const state = newState()
  const buyer = wallet({ state })
  await buyer.call('a')
  Object.assign(node.chain, { balanceAtomic: 50_000n, isUsed: true })
  expect((await close(state)).text).toMatch(/^0.050000 USDC came back, in transaction 0x/)
  expect(spent(buyer)).toBe(0n)
  expect(openChannelFiles(state).list()).toEqual([])
})

/** What the vouchers of a test signed, one after the other. */
const sums = () => payments().map(sumOf)

test('attack: a gateway that shows each voucher as charged gets no more of a call than its limit', async () => {
  for (const [perCall, most] of [
    ['0.005', 5000],
    ['0.01', 10_000],
    ['0.014', 10_000],
  ] as const) {
    const state = newState()
    await fund(state, 40_000n)
    fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
    const { call } = wallet({ state, perCall, deposit: '0.005' })
    for (let count = 0; count < 5; count++)
      expect((await call('a')).text).toStartWith('The gateway is not believed: it shows the')
    expect(Math.max(...sums())).toBe(most)
    fake.messages.length = 0
  }
})

test('attack: what a gateway took of a call counts for it after other calls and refusals', async () => {
  const refused = () => problem('verification-failed')
  for (const first of [lost, refused, corrected]) {
    const state = newState()
    await fund(state, 40_000n)
    const { call } = wallet({ state, perCall: '0.005', deposit: '0.005' })
    fake.answer = (_, paying) => (paying ? first() : offers(both()))
    await call('a')
    fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
    for (const name of 'babba') await call(name)
    // Two calls cost two prices, however often each is repeated.
    expect(Math.max(...sums())).toBe(10_000)
    fake.messages.length = 0
  }
})

test('attack: what a gateway took of a call is not forgotten after many refusals', async () => {
  const state = newState()
  await fund(state, 40_000n)
  const { call } = wallet({ state, perCall: '0.005', deposit: '0.005' })
  fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
  await call('a')
  const refused = problem('verification-failed')
  fake.answer = (_, paying) => (paying ? refused : offers(both()))
  for (let count = 0; count < 70; count++) await call('b', { count })
  const most = Math.max(...sums())
  await call('a')
  expect(Math.max(...sums())).toBe(most)
  expect(sums().at(-1)).toBe(5000)
})

test('attack: a voucher that its gateway has taken is not called uncharged', async () => {
  const state = newState()
  await fund(state, 40_000n)
  fake.answer = (_, paying) => {
    if (!paying) return offers(both())
    return payments().length === 1 ? corrected() : problem('verification-failed')
  }
  const { call } = wallet({ state, perCall: '0.01', deposit: '0.005' })
  expect((await call('a')).text).toEndWith('has shown 0.005000 USDC as charged for this call.')
  // Refused, too, it is not replaced by a third one.
  await call('a')
  fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
  await call('a')
  expect(Math.max(...sums())).toBe(10_000)
})

test('attack: a charge by a voucher that was taken before does not raise the next one', async () => {
  const state = newState()
  await fund(state, 40_000n)
  const { call } = wallet({ state, perCall: '0.005', deposit: '0.005' })
  fake.answer = (_, paying) => (paying ? corrected() : offers(both()))
  await call('a')
  const settled = { success: true, extra: { chargedAmount: '5000' } }
  const again = paid('goods', { _meta: { 'x402/payment-response': settled } })
  fake.answer = (_, paying) => (paying ? again : offers(both()))
  await call('a')
  await call('b')
  expect(sums()).toEqual([5000, 5000, 10_000])
})

test('an answer without its charge is the end of a call, and explains what is shown as charged later', async () => {
  const state = newState()
  await fund(state, 40_000n)
  const { call } = wallet({ state, perCall: '0.005', deposit: '0.005' })
  // As of a stream, whose charge is known at its end only.
  const streamed = { ...paid('goods'), _meta: { 'org.paymentauth/receipt': {} } }
  fake.answer = (_, paying) => {
    if (!paying) return offers(both())
    return payments().length % 2 === 0 ? corrected() : streamed
  }
  await call('b')
  for (let count = 0; count < 3; count++) expect((await call('a')).text).toStartWith('goods')
  expect(sums()).toEqual([5000, 5000, 10_000, 10_000, 15_000, 15_000, 20_000])
})

test('attack: a gateway that offers thousands of channels does not keep the wallet at work', async () => {
  const many = Array.from({ length: 5_000 }, (_, index) =>
    byChannel('50000', { withdrawDelay: 900 + index }),
  )
  fake.answer = (_, paying) => (paying ? paid('goods') : offers([...many, offer('5000')]))
  const { text } = await wallet({ state: newState() }).call('a')
  expect(text).toContain('goods')
  expect(node.chain.waiting).toBeLessThan(200)
}, 20_000)
