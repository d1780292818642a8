import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { decodePaymentRequiredHeader, decodePaymentResponseHeader } from '@x402/core/http'
import { Receipt as MppReceipt } from 'mppx'
import * as Credential from '../../src/cli/buy/Credential'
import * as Terms from '../../src/cli/buy/Terms'
import { account, type DemoAccount } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402, type Purchase } from '../../src/demo/buyers'
import { balanceOf } from '../../src/demo/chains'
import type { TransferMethod } from '../../src/protocol/Asset'
import type { Id } from '../../src/protocol/Network'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import { mppx as program } from '../harness/mppx'
import { outcomeOf } from '../harness/outcome'
import { type TestWorld, testWorld, until } from '../harness/world'

// Programs and chains start in each test, perhaps beside other work.
let world: TestWorld
beforeAll(async () => {
  world = await testWorld()
})
afterAll(() => world?.stop())

const chat = (stream: boolean): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    model: 'assistant-fast',
    messages: [{ role: 'user', content: 'What does a turnpike do?' }],
    stream,
  }),
})

/** Base 500, about 1,150 tokens of input at 0.6 and 2,000 of output at 3.6, rounded up by steps of 256. */
const chatAtomic = 8_448n

type Good = {
  name: string
  path: string
  priceAtomic: bigint
  init?: RequestInit
  /** Whether a body is the bought one. */
  isRight: (body: string) => boolean
}

const forecast: Good = {
  name: 'GET with a query',
  path: '/m/weather/forecast?latitude=52.52&longitude=13.41&current=temperature_2m',
  priceAtomic: 5000n,
  isRight: (body) => JSON.parse(body).current.temperature_2m !== undefined,
}
const summary: Good = {
  name: 'GET with a tail',
  path: '/m/wiki/summary/Ada_Lovelace',
  priceAtomic: 5000n,
  isRight: (body) => JSON.parse(body).title !== undefined,
}
const completion: Good = {
  name: 'POST',
  path: '/m/assistant/chat',
  priceAtomic: chatAtomic,
  init: chat(false),
  isRight: (body) => JSON.parse(body).choices[0].message.role === 'assistant',
}
const stream: Good = {
  name: 'POST that streams',
  path: '/m/assistant/chat',
  priceAtomic: chatAtomic,
  init: chat(true),
  isRight: (body) => body.endsWith('data: [DONE]\n\n') && body.split('\n\n').length > 5,
}
/** The only merchant of the shipped file that sells on the testnet. */
const joke: Good = {
  name: 'GET of a builtin',
  path: '/m/catjoke/joke',
  priceAtomic: 10_000n,
  isRight: (body) => typeof JSON.parse(body).joke === 'string',
}

type Client = {
  name: string
  network: Id
  goods: readonly Good[]
  buy: (url: string, buyer: DemoAccount, init?: RequestInit) => Promise<Purchase>
}

const mppx = (network: Id, goods: readonly Good[]): Client => ({
  name: 'mppx',
  network,
  goods,
  buy: (url, buyer, init) => buyWithMppx(world, url, buyer, { network, init }),
})
const x402 = (network: Id, method: TransferMethod, goods: readonly Good[]): Client => ({
  name: `@x402/fetch with ${method}`,
  network,
  goods,
  buy: (url, buyer, init) => buyWithX402(world, url, buyer, { network, method, init }),
})

const clients: readonly Client[] = [
  mppx('eip155:8453', [forecast, summary, completion, stream, joke]),
  mppx('eip155:84532', [joke]),
  mppx('eip155:4663', [forecast, stream]),
  x402('eip155:8453', 'eip3009', [forecast, summary, completion, stream, joke]),
  x402('eip155:84532', 'eip3009', [joke]),
  x402('eip155:4663', 'permit2', [forecast, completion, stream]),
  x402('eip155:4663', 'eip3009', [forecast]),
]

async function holdings(network: Id, buyer: DemoAccount) {
  const chain = world.chains[network]
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (!chain || !asset) throw new Error(`${network} is not there`)
  const of = (address: DemoAccount['address']) => balanceOf(chain, asset.address, address)
  return {
    payer: await of(buyer.address),
    payee: await of(world.config.service.payout),
    relayer: await of(account(0).address),
  }
}

/** Checks the receipt as the client's own library reads it, and our signature. */
async function expectReceipt(purchase: Purchase, network: Id, buyer: DemoAccount, path: string) {
  const { headers } = purchase.response
  const encoded = headers.get('payment-receipt') ?? headers.get('payment-response') ?? ''
  let transaction: string
  if (headers.has('payment-receipt')) {
    const receipt = MppReceipt.deserialize(encoded)
    expect(receipt).toMatchObject({ method: 'evm', status: 'success' })
    transaction = receipt.reference
  } else {
    const settled = decodePaymentResponseHeader(encoded)
    expect(settled).toMatchObject({ success: true, network, payer: buyer.address })
    expect(headers.get('x-payment-response')).toBe(encoded)
    transaction = settled.transaction
  }
  const signed = Receipt.parse(encoded)
  if (isFault(signed)) throw new Error(signed.detail)
  expect(Receipt.verify(signed)).toBe(world.app.receiptAddress)
  expect(signed.payload).toMatchObject({ network, transaction, payer: buyer.address })
  expect(new URL(signed.payload.resourceUrl).pathname).toBe(path.split('?')[0] ?? '')
  const mined = await world.chains[network]?.rpc('eth_getTransactionReceipt', [transaction])
  expect(mined).toMatchObject({ status: '0x1' })
}

for (const { name, network, goods, buy } of clients)
  describe(`${name} on ${network}`, () => {
    for (const [index, good] of goods.entries())
      test(`a stock client buys ${good.name}`, async () => {
        const buyer = account(1 + (index % 2))
        const before = await holdings(network, buyer)
        const purchase = await buy(world.url + good.path, buyer, good.init)
        const after = await holdings(network, buyer)
        expect(purchase.requests.map(({ status }) => status)).toEqual([402, 200])
        expect(good.isRight(purchase.body)).toBe(true)
        expect(after).toEqual({
          payer: before.payer - good.priceAtomic,
          payee: before.payee + good.priceAtomic,
          relayer: before.relayer,
        })
        await expectReceipt(purchase, network, buyer, good.path)
      })
  })

/** What an answer of the first model costs: base 0.0005, input at 0.60 and output at 3.60 a million. */
function costOf(usage: { prompt_tokens: number; completion_tokens: number }): bigint {
  return 500n + BigInt(Math.ceil(usage.prompt_tokens * 0.6 + usage.completion_tokens * 3.6))
}

for (const network of ['eip155:8453', 'eip155:4663'] as const)
  describe(`@x402/fetch by upto on ${network}`, () => {
    test('@x402/fetch buys a whole answer by its use', async () => {
      const buyer = account(1)
      const before = await holdings(network, buyer)
      const options = { network, method: 'upto' as const, init: completion.init }
      const purchase = await buyWithX402(world, world.url + completion.path, buyer, options)
      const after = await holdings(network, buyer)
      expect(purchase.requests.map(({ status }) => status)).toEqual([402, 200])
      const cost = costOf(JSON.parse(purchase.body).usage)
      expect(cost).toBeLessThan(completion.priceAtomic)
      expect(before.payer - after.payer).toBe(cost)
      expect(after.payee - before.payee).toBe(cost)
      expect(after.relayer).toBe(before.relayer)
      await expectReceipt(purchase, network, buyer, completion.path)
    })

    test('@x402/fetch buys a stream, which is settled at its end', async () => {
      const buyer = account(2)
      const before = await holdings(network, buyer)
      const options = { network, method: 'upto' as const, init: stream.init }
      const purchase = await buyWithX402(world, world.url + stream.path, buyer, options)
      expect(purchase.response.headers.get('payment-id')).toStartWith('pay_')
      const events = purchase.body.split('\n\n').filter((event) => event.startsWith('data: {'))
      const { usage } = JSON.parse((events.at(-1) ?? '').slice('data: '.length))
      const paid = before.payer - costOf(usage)
      await until('it is settled', async () => (await holdings(network, buyer)).payer === paid)
      expect((await holdings(network, buyer)).payee).toBe(before.payee + costOf(usage))
    })
  })

test('mppx without configuration pays the first challenge, with USDC on 8453', async () => {
  const purchase = await buyWithMppx(world, world.url + forecast.path, account(3))
  expect(purchase.response.status).toBe(200)
  await expectReceipt(purchase, 'eip155:8453', account(3), forecast.path)
})

test('@x402/fetch and mppx need only a key and USDC, as the README says', async () => {
  const url = world.url + forecast.path
  const signer = account(3).local()
  const { wrapFetchWithPayment, x402Client } = await import('@x402/fetch')
  const { ExactEvmScheme } = await import('@x402/evm/exact/client')
  const client = new x402Client().register('eip155:8453', new ExactEvmScheme(signer))
  const bought = await wrapFetchWithPayment(fetch, client)(url)
  expect([bought.status, forecast.isRight(await bought.text())]).toEqual([200, true])

  const { Mppx } = await import('mppx/client')
  const { charge, assets } = await import('mppx/evm/client')
  const pay = (currencies: object) =>
    Mppx.create({ methods: [charge({ account: signer, ...currencies })], polyfill: false }).fetch(
      url,
    )
  const paid = await pay({ currencies: [assets.base.USDC] })
  expect([paid.status, forecast.isRight(await paid.text())]).toEqual([200, true])
  expect(await outcomeOf(pay({}))).toThrow('requires token name and version')
})

test('ten concurrent purchases of one buyer all settle', async () => {
  const before = await holdings('eip155:8453', account(4))
  const bought = await Promise.all(
    Array.from({ length: 10 }, () => buyWithMppx(world, world.url + forecast.path, account(4))),
  )
  expect(bought.map(({ response }) => response.status)).toEqual(Array(10).fill(200))
  const after = await holdings('eip155:8453', account(4))
  expect(before.payer - after.payer).toBe(10n * forecast.priceAtomic)
})

test('error: a wallet without a Permit2 approval is refused and nothing moves', async () => {
  const buyer = account(5)
  const before = await holdings('eip155:4663', buyer)
  const purchase = await buyWithX402(world, world.url + forecast.path, buyer, {
    network: 'eip155:4663',
    method: 'permit2',
  })
  expect(purchase.response.status).toBe(402)
  const settled = decodePaymentResponseHeader(
    purchase.response.headers.get('payment-response') ?? '',
  )
  expect(settled).toMatchObject({ success: false, errorReason: 'permit2_allowance_required' })
  expect(await holdings('eip155:4663', buyer)).toEqual(before)
})

test('mppx validate finds nothing wrong', async () => {
  // The realm is the host name of base_url.
  const url = world.url.replace('127.0.0.1', 'localhost')
  const child = Bun.spawn([process.execPath, program, 'validate', url], {
    env: { PATH: process.env.PATH ?? '', HOME: world.dataDir, NO_COLOR: '1' },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, code] = await Promise.all([new Response(child.stdout).text(), child.exited])
  expect(out.match(/^.*(\u2717|\u26a0).*$/gm)).toBeNull()
  expect(out).toMatch(/Summary: \d{3,} passed/)
  expect(code).toBe(0)
})

test('with an Idempotency-Key a repeated credential gets the answer again', async () => {
  const buyer = account(3)
  const url = world.url + forecast.path
  const [terms] = Terms.decode((await fetch(url)).headers)
  if (terms === undefined) throw new Error('nothing is offered')
  const { header, value } = Credential.from(terms, {
    privateKey: Uint8Array.fromHex(buyer.privateKey.slice(2)),
    now: Date.now(),
    random: crypto.getRandomValues(new Uint8Array(32)),
  })
  const send = (key: string) => fetch(url, { headers: { [header]: value, 'idempotency-key': key } })
  const before = await holdings('eip155:8453', buyer)
  const first = await send('one')
  let again = await send('one')
  await until('the answer is stored, which may be after it was sent', async () => {
    if (again.status === 409) again = await send('one')
    return again.status !== 409
  })
  expect([first.status, again.status]).toEqual([200, 200])
  expect(again.headers.get('idempotency-replayed')).toBe('true')
  expect(await again.text()).toBe(await first.text())
  expect((await send('two')).status).toBe(402)
  const after = await holdings('eip155:8453', buyer)
  expect(before.payer - after.payer).toBe(forecast.priceAtomic)
})

test('the x402 resource is the requested URL, with its query', async () => {
  const { headers } = await fetch(world.url + forecast.path)
  const required = decodePaymentRequiredHeader(headers.get('payment-required') ?? '')
  expect(required.resource.url).toBe(`http://localhost${forecast.path}`)
  const long = await fetch(`${world.url}${forecast.path}&x=${'y'.repeat(4000)}`)
  const header = long.headers.get('payment-required') ?? ''
  expect(header.length).toBeLessThanOrEqual(4096)
  expect(decodePaymentRequiredHeader(header).accepts).toHaveLength(3)
})
