import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'bun:test'
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { channels } from '../../src/cli/buy/channels'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain, mine } from '../../src/demo/chains'
import { revert, snapshot } from '../harness/chains'
import { type ChannelMerchant, startChannelMerchant } from '../harness/channel-merchant'
import { exitCode } from '../harness/command'
import { executable } from '../harness/executable'
import { leaseChain, returnChain } from '../harness/lease'
import { base } from '../harness/stablecoin'
import { until } from '../harness/world'

/** `turnpike pay --scheme channel` and `turnpike channels`, with a merchant of the reference. */

const network = { ...base, asset: { ...base.asset, transfer: [...base.asset.transfer] } }
const selling = { ...network, id: 'eip155:8453' as const, name: 'Base' }
const buyer = account(1)
let chain: Chain
let merchant: ChannelMerchant
let home: string
let clean: Awaited<ReturnType<typeof snapshot>>
beforeAll(async () => {
  chain = await leaseChain(network)
})
beforeEach(async () => {
  clean = await snapshot(chain)
  merchant = await startChannelMerchant(selling, chain.url, { minDeposit: 20_000n })
  home = mkdtempSync(join(tmpdir(), 'turnpike-channels-'))
})
afterEach(async () => {
  merchant.stop()
  rmSync(home, { recursive: true, force: true })
  await revert(chain, clean)
})
afterAll(() => chain && returnChain(chain))

const env = () => ({
  ...{ PATH: process.env.PATH ?? '', PAY_KEY: buyer.privateKey, XDG_STATE_HOME: home },
})
const start = (args: readonly string[]) =>
  Bun.spawn([executable, ...args], {
    ...{ env: env(), stdin: 'ignore', stdout: 'pipe', stderr: 'pipe' },
  })
async function run(args: readonly string[]) {
  const child = start(args)
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  return { code, out, err }
}
const paying = (...more: string[]) => [
  'pay',
  merchant.url,
  '--scheme',
  'channel',
  '--rpc',
  chain.url,
  ...more,
]
const pay = (...more: string[]) => run(paying(...more))
const close = (...more: string[]) => run(['channels', 'close', '--rpc', chain.url, ...more])
const directory = () => join(home, 'turnpike', 'channels')
const files = () => readdirSync(directory()).filter((name) => name.endsWith('.json'))
const held = () => balanceOf(chain, base.asset.address, buyer.address)
/** Headers of the payments that the merchant got. */
const payments = () =>
  merchant.requests.flatMap(({ headers }) => headers.get('payment-signature') ?? [])
const decode = (header: string | undefined) =>
  JSON.parse(Buffer.from(header ?? '', 'base64').toString())
const kinds = () => payments().map((header) => decode(header).payload.type)
const encode = (json: object) => Buffer.from(JSON.stringify(json)).toString('base64')

test('one deposit pays many requests, and lost files cost nothing', async () => {
  const before = await held()
  const first = await pay('--deposit', '0.05')
  expect(first).toMatchObject({ code: 0, out: '{"served":1}' })
  expect(first.err).toContain('deposit    0.050000 USDC for 0x')
  expect(first.err).toMatch(/settled by 0x[0-9a-f]{64}\n/)
  expect(first.err).not.toContain(buyer.privateKey.slice(2))
  const block = await chain.rpc('eth_blockNumber', [])
  expect((await pay()).err).toContain('channel    0.030000 USDC are left\n')
  expect(files()).toHaveLength(1)
  expect(statSync(join(directory(), files()[0] ?? '')).mode & 0o777).toBe(0o600)
  // Nothing was claimed, so only the merchant knows the two charges.
  rmSync(home, { recursive: true })
  const third = await pay()
  expect(third).toMatchObject({ code: 0, out: '{"served":3}' })
  expect(third.err).toContain('channel    0.020000 USDC are left\n')
  expect(await chain.rpc('eth_blockNumber', [])).toBe(block)
  // The answer of the merchant corrected it once.
  expect(kinds()).toEqual(['deposit', 'voucher', 'voucher', 'voucher'])
  expect(await held()).toBe(before - 50_000n)
})

test('a channel that is used up gets another deposit, within the limit', async () => {
  await pay('--max', '0.02')
  await pay()
  const over = await pay()
  expect(over).toMatchObject({ code: 1, out: '' })
  expect(over.err).toContain('The channel needs a deposit of 0.020000 USDC')
  expect(payments()).toHaveLength(2)
  expect((await pay('--deposit', '0.02')).err).toContain('channel    0.010000 USDC are left')
  expect(kinds()).toEqual(['deposit', 'voucher', 'deposit'])
  const least = await pay('--deposit', '0.019', '--network', 'base')
  expect(least.err).toContain('channel    0.000000 USDC are left')
  const small = await pay('--deposit', '0.019')
  expect(small.err).toContain('The channel takes a deposit of at least 0.020000 USDC.')
  expect(payments()).toHaveLength(4)
})

test('the rest comes back in part and whole, and the channel can be used again', async () => {
  const before = await held()
  await pay('--deposit', '0.05')
  const listed = await run(['channels', '--json', '--rpc', chain.url])
  const [channel] = JSON.parse(listed.out)
  expect(channel).toMatchObject({ left: '0.040000 USDC', claimed: '0.000000 USDC' })
  expect((await close('--amount', '0.03')).out).toMatch(/^0\.030000 USDC came back, in .* 0x/)
  expect((await run(['channels', '--rpc', chain.url])).out).toContain('0.010000 USDC of 0.020000')
  expect((await close(channel.id.slice(0, 8))).out).toMatch(/^0\.010000 USDC came back/)
  expect(await held()).toBe(before - 10_000n)
  expect(files()).toEqual([])
  expect((await close()).out).toContain('has no such channel here')
  expect((await pay('--deposit', '0.02')).err).toContain('channel    0.010000 USDC are left')
})

test('attack: a merchant that names an older refund has given nothing back', async () => {
  await pay('--deposit', '0.05')
  const [, hash] = /in transaction (0x\w+)/.exec((await close('--amount', '0.01')).out) ?? []
  merchant.script = async (request, serve) => {
    if (!request.headers.has('payment-signature')) return serve()
    const headers = { 'payment-response': encode({ success: true, transaction: hash }) }
    return new Response('{}', { headers })
  }
  const before = await run(['channels', '--json', '--rpc', chain.url])
  const lines: string[] = []
  let now = Date.now()
  const code = await exitCode(channels, {
    ...{ verb: 'close', operand: 'close', amount: '0.01', rpc: chain.url, env: env() },
    now: () => {
      now += 31_000
      return now
    },
    out: (line) => void lines.push(line),
  })
  expect(code).toBe(1)
  expect(lines).toEqual([`turnpike: The node does not show that ${hash} gave something back.`])
  const file = JSON.parse(readFileSync(join(directory(), files()[0] ?? ''), 'utf8'))
  expect(file).toMatchObject({ balanceAtomic: '40000', chargedAtomic: '10000' })
  expect(await run(['channels', '--json', '--rpc', chain.url])).toEqual(before)
})

test('without the merchant the rest is withdrawn, after the delay', async () => {
  const before = await held()
  await pay('--deposit', '0.05')
  merchant.stop()
  expect((await close()).out).toContain('did not answer; --withdraw gets it back')
  const lines: string[] = []
  const withdraw = (now: number) =>
    exitCode(channels, {
      ...{ verb: 'close', operand: 'close', withdraw: true, rpc: chain.url, env: env() },
      ...{ now: () => now, out: (line: string) => void lines.push(line) },
    })
  expect(await withdraw(Date.now())).toBe(0)
  expect(lines[0]).toMatch(/^The withdrawal of 0\.040000 USDC has begun, in transaction 0x/)
  expect(await withdraw(Date.now())).toBe(1)
  const after = Date.now() + 901_000
  await chain.rpc('evm_setTime', [Math.ceil(after / 1000)])
  await mine(chain)
  expect(await withdraw(after)).toBe(0)
  expect(await held()).toBe(before - 10_000n)
  expect(files()).toEqual([])
})

test('after a crash the same request sends the same voucher, and another one no higher', async () => {
  await pay('--deposit', '0.05')
  merchant.script = (request, serve) =>
    request.headers.has('payment-signature') ? new Promise(() => undefined) : serve()
  const child = start(paying())
  await until('the voucher was sent', () => payments().length === 2)
  child.kill('SIGKILL')
  await child.exited
  merchant.script = undefined
  expect((await pay('--method', 'POST')).code).toBe(0)
  expect((await pay()).code).toBe(0)
  const [, sent, other, again, corrected] = payments()
  expect(decode(other).payload.voucher).toEqual(decode(sent).payload.voucher)
  expect(again).toBe(sent)
  expect(decode(corrected).payload.voucher.maxClaimableAmount).toBe('30000')
  const keys = merchant.requests.map(({ headers }) => headers.get('idempotency-key'))
  expect(keys.filter((key) => key === keys[3])).toHaveLength(2)
})

test('a deposit without an answer is sent again, and never signed twice', async () => {
  let isLost = true
  merchant.script = async (request, serve) => {
    if (!request.headers.has('payment-signature')) return serve()
    const served = await serve()
    return isLost ? new Promise(() => undefined) : served
  }
  const before = await held()
  const child = start(paying('--deposit', '0.05'))
  await until('the deposit arrived', async () => (await held()) < before)
  child.kill('SIGKILL')
  await child.exited
  isLost = false
  expect((await pay('--method', 'POST')).err).toContain('channel    0.030000 USDC are left')
  expect(await held()).toBe(before - 50_000n)
})

test('a deposit that was lost on its way is sent again, and not signed again', async () => {
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? new Promise(() => undefined) : serve()
  const child = start(paying('--deposit', '0.05'))
  await until('the deposit was sent', () => payments().length === 1)
  child.kill('SIGKILL')
  await child.exited
  merchant.script = undefined
  expect((await pay('--method', 'POST')).err).toContain('channel    0.040000 USDC are left')
  const [first, second] = payments().map((header) => decode(header).payload.deposit)
  expect(second).toEqual(first)
})

test('two processes at once use two channels', async () => {
  let served = Promise.resolve<unknown>(undefined)
  merchant.script = async (request, serve) => {
    if (!request.headers.has('payment-signature')) return serve()
    await until('both have signed', () => payments().length === 2)
    // The reference's facilitator does not send two deposits at once.
    const response = served.then(serve)
    served = response
    return response
  }
  const both = await Promise.all([pay('--deposit', '0.02'), pay('--deposit', '0.02')])
  expect(both.map(({ code }) => code)).toEqual([0, 0])
  expect(files()).toHaveLength(2)
})

const notNow = () =>
  new Response('{}', { status: 503, headers: { 'content-type': 'application/problem+json' } })

test('attack: a request whose voucher has no answer is paid by no other channel', async () => {
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? notNow() : serve()
  expect((await pay('--deposit', '0.02')).err).toContain('it sends the same voucher')
  merchant.script = async (_, serve) => {
    const required = decode((await serve()).headers.get('payment-required') ?? '')
    required.accepts[0].extra.withdrawDelay = 901
    return new Response('{}', { status: 402, headers: { 'payment-required': encode(required) } })
  }
  const again = await pay('--deposit', '0.02')
  expect(again.err).toContain('its voucher is of a channel that is not offered any more')
  expect(payments()).toHaveLength(1)
})

test('attack: a request whose voucher has no answer waits for its channel', async () => {
  await pay('--deposit', '0.05')
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? notNow() : serve()
  await pay()
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? new Promise(() => undefined) : serve()
  const other = start(paying('--method', 'POST'))
  await until('another request uses the channel', () => payments().length === 3)
  merchant.script = undefined
  const again = await pay('--deposit', '0.02')
  other.kill('SIGKILL')
  await other.exited
  expect(again.err).toMatch(/The channel 0x\w+ is in use\./)
  expect(files()).toHaveLength(1)
  expect((await pay()).err).toContain('channel    0.030000 USDC are left')
})

test('attack: what was signed before a close is not paid from a later deposit', async () => {
  await pay('--method', 'POST', '--deposit', '0.05')
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? notNow() : serve()
  await pay()
  merchant.script = undefined
  expect((await close()).out).toContain('0.040000 USDC came back')
  expect((await pay('--deposit', '0.02')).code).toBe(0)
  const [first, lost, refund, later] = payments().map((each) => decode(each).payload.voucher)
  expect(lost.channelId).toBe(first.channelId)
  expect(refund.channelId).toBe(first.channelId)
  expect(later.channelId).not.toBe(first.channelId)
  expect((await close(later.channelId)).out).toContain('0.010000 USDC came back')
})

test('attack: an offer too long for a head is not signed, and nothing is kept of it', async () => {
  merchant.script = async (_, serve) => {
    const required = decode((await serve()).headers.get('payment-required') ?? '')
    const [accepted] = required.accepts
    const long = { ...accepted, extra: { ...accepted.extra, text: 'x'.repeat(1e6) } }
    const headers = { 'payment-required': encode({ ...required, accepts: [] }) }
    return Response.json({ accepts: [long] }, { status: 402, headers })
  }
  const ran = await pay('--deposit', '0.02')
  expect(ran.err).toContain('The offer is too long to be paid by a channel.')
  expect(payments()).toEqual([])
  expect(files()).toEqual([])
})

test('attack: a request whose voucher has no answer waits while its channel is asked for the rest', async () => {
  await pay('--deposit', '0.05')
  merchant.script = async (request, serve) =>
    request.headers.has('payment-signature') ? notNow() : serve()
  await pay()
  let asked = 0
  merchant.script = async (_, serve) => (++asked === 1 ? new Promise(() => undefined) : serve())
  const closing = start(['channels', 'close', '--rpc', chain.url])
  await until('the merchant is asked', () => asked === 1)
  const again = await pay('--deposit', '0.02')
  closing.kill('SIGKILL')
  await closing.exited
  expect(again.err).toMatch(/The channel 0x\w+ is in use\./)
  expect(files()).toHaveLength(1)
})

/** The answers of a server that lies, and what the buyer says. */
const lies: readonly [string, (response: Response) => Response, string][] = [
  [
    'a charge above the price',
    settledAs({ chargedAmount: '10001' }),
    'it charged 10001 of at most',
  ],
  [
    'a wrong sum of charges',
    settledAs({ chargedAmount: '9000', channelState: { chargedCumulativeAmount: '30000' } }),
    '30000 are charged in all, and not 19000',
  ],
  [
    'a state that somebody else has signed',
    correctedAs({ signedMaxClaimable: '40000', signature: `0x${'11'.repeat(65)}` }),
    'a voucher that this wallet has not signed',
  ],
  [
    'a charge above its voucher',
    correctedAs({ signedMaxClaimable: '100', signature: `0x${'11'.repeat(65)}` }),
    'a charge of 40000 by a voucher of 100',
  ],
]
for (const [name, lie, told] of lies) {
  test(`attack: a server that answers with ${name} is not believed`, async () => {
    await pay('--deposit', '0.05')
    merchant.script = async (request, serve) =>
      request.headers.has('payment-signature') ? lie(await serve()) : serve()
    const ran = await pay()
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('the server is not believed')
    expect(ran.err).toContain(told)
    merchant.script = undefined
    await pay('--method', 'POST')
    const maxima = payments().map((each) => decode(each).payload.voucher.maxClaimableAmount)
    // Never above what was charged and one price.
    expect(maxima.slice(0, 3)).toEqual(['10000', '20000', '20000'])
  })
}

test('attack: a server that shows the voucher of a request as charged gets no other above --max', async () => {
  await pay('--deposit', '0.05')
  merchant.script = async (request, serve) => {
    const sent = request.headers.get('payment-signature')
    if (sent === null) return serve()
    const { maxClaimableAmount: charged, signature } = decode(sent).payload.voucher
    return correctedAs({ signedMaxClaimable: charged, signature }, charged)()
  }
  const ran = await pay()
  expect(ran.code).toBe(1)
  expect(ran.err).toContain('is not believed: it shows the voucher of this request as charged')
  expect(kinds()).toEqual(['deposit', 'voucher'])
  // Two vouchers are within this limit, and no third one of a repetition.
  await pay('--max', '0.02')
  await pay('--max', '0.02')
  const maxima = payments().map((each) => decode(each).payload.voucher.maxClaimableAmount)
  expect(maxima).toEqual(['10000', '20000', '30000', '30000'])
})

test('attack: what a server says that is no text ends a payment as a refusal', async () => {
  merchant.script = async (request, serve) => {
    if (!request.headers.has('payment-signature')) return serve()
    const required = { ...decode(merchant.offers[0]), error: { toString: 1 } }
    return new Response('{}', { status: 402, headers: { 'payment-required': encode(required) } })
  }
  const ran = await pay('--deposit', '0.05')
  expect(ran.code).toBe(1)
  expect(ran.err).toContain('answer     402')
})

function settledAs(extra: object) {
  return (response: Response) => {
    const headers = new Headers(response.headers)
    const settled = { success: true, transaction: '', network: selling.id, payer: '', extra }
    headers.set('payment-response', encode(settled))
    return new Response(response.body, { status: 200, headers })
  }
}

function correctedAs(voucherState: object, chargedCumulativeAmount = '40000') {
  const channelState = { chargedCumulativeAmount }
  return () => {
    const [asked] = merchant.offers
    const required = decode(asked)
    required.error = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
    Object.assign(required.accepts[0].extra, { channelState, voucherState })
    return new Response('{}', { status: 402, headers: { 'payment-required': encode(required) } })
  }
}
