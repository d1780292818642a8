import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { decodePaymentResponseHeader } from '@x402/core/http'
import { HTTPFacilitatorClient } from '@x402/core/server'
import { Elysia } from 'elysia'
import { evm, Mppx } from 'mppx/elysia'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import { buyWithMppx } from '../../src/demo/buyers'
import type { Id } from '../../src/protocol/Network'
import { makeBody } from '../harness/facilitation'
import { failureOf } from '../harness/outcome'
import { buyFrom, type Flow, replay, startResourceServer } from '../harness/resource-server'
import { payee, type Shop, startShop, untilEnded } from '../harness/shop'

/** Stock programs against the facilitator, as they are in the registry. */

let shop: Shop
beforeAll(async () => {
  // Two hundred calls come from one address.
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        verifyPerMinute: 10_000,
        settlePerMinute: 10_000,
        uptoWithoutKeys: true,
      },
    }),
  })
})
afterAll(() => shop?.stop())

const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'

function networkOf(id: Id) {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}

type Sent = Parameters<HTTPFacilitatorClient['verify']>

describe('HTTPFacilitatorClient', () => {
  const sent = async (made: Parameters<typeof makeBody>[1]): Promise<Sent> => {
    const body = await makeBody(networkOf(base), made)
    return [body.paymentPayload, body.paymentRequirements] as unknown as Sent
  }

  test('HTTPFacilitatorClient reads /supported, verifies and settles', async () => {
    const client = new HTTPFacilitatorClient({ url: shop.url })
    const { kinds } = await client.getSupported()
    const networks = [robinhood, base, 'eip155:84532']
    const schemes = kinds.map(({ scheme, network }) => `${scheme} ${network}`)
    expect(schemes).toEqual([
      ...['exact', 'upto', 'batch-settlement'].flatMap((scheme) =>
        networks.map((each) => `${scheme} ${each}`),
      ),
      // Of version 1.
      ...['exact base', 'exact base-sepolia'],
    ])
    const payment = await sent({})
    expect(await client.verify(...payment)).toEqual({
      isValid: true,
      payer: account(1).address,
    })
    expect(await client.settle(...payment)).toMatchObject({ success: true, network: base })
    expect(await client.settle(...payment)).toMatchObject({
      success: false,
      errorReason: 'invalid_exact_evm_nonce_already_used',
    })
  })

  test('error: HTTPFacilitatorClient reads the code of a malformed request', async () => {
    const client = new HTTPFacilitatorClient({ url: `${shop.url}/facilitator` })
    const [payload, requirements] = await sent({})
    const other = { ...requirements, network: 'eip155:1' } as Sent[1]
    expect(await failureOf(client.verify(payload, other))).toMatchObject({
      name: 'VerifyError',
      statusCode: 400,
      invalidReason: 'invalid_network',
    })
    expect(await failureOf(client.settle(payload, other))).toMatchObject({
      name: 'SettleError',
      statusCode: 400,
      errorReason: 'invalid_network',
    })
  })
})

describe('@x402/hono with @x402/fetch', () => {
  const sales = [
    [base, 'eip3009', 'authorization'],
    [base, 'eip3009', 'upfront'],
    [robinhood, 'permit2', 'authorization'],
    [robinhood, 'permit2', 'upfront'],
  ] as const
  for (const [id, method, flow] of sales) {
    test(`attack 1: ${method}, ${flow}: a credential is served once, for sequential and concurrent replays`, async () => {
      await sellAndReplay(id, method, flow)
    })
  }

  async function sellAndReplay(id: Id, method: 'eip3009' | 'permit2', flow: Flow) {
    const server = startResourceServer(shop.url, networkOf(id), { method, flow })
    try {
      const before = await shop.balance(id, payee)
      const { response, credential } = await buyFrom(server.url, networkOf(id), account(1).local())
      expect(response.status).toBe(200)
      const told = decodePaymentResponseHeader(response.headers.get('payment-response') ?? '')
      expect(told).toMatchObject({ success: true, network: id, payer: account(1).address })
      expect((await shop.balance(id, payee)) - before).toBe(10_000n)
      const statuses: number[] = []
      for (let i = 0; i < 5; i++) statuses.push((await replay(server.url, credential)).status)
      const atOnce = Array.from({ length: 5 }, () => replay(server.url, credential))
      statuses.push(...(await Promise.all(atOnce)).map(({ status }) => status))
      expect(statuses).toEqual(new Array(10).fill(402))
      expect((await shop.balance(id, payee)) - before).toBe(10_000n)
    } finally {
      server.stop()
    }
  }

  for (const flow of ['authorization', 'upfront'] as const) {
    test(`attack 2: ${flow}: five concurrent requests are served once, and never again after a restart`, async () => {
      const network = networkOf(base)
      const first = startResourceServer(shop.url, network, { flow })
      const credential = await sign(first.url)
      const atOnce = Array.from({ length: 5 }, () => replay(first.url, credential))
      const statuses = (await Promise.all(atOnce)).map(({ status }) => status)
      expect(statuses.filter((status) => status === 200)).toHaveLength(1)
      first.stop()
      await shop.restart()
      // The facilitator and the resource server store state only in the database.
      const second = startResourceServer(shop.url, network, { flow })
      const again: number[] = []
      for (let i = 0; i < 5; i++) again.push((await replay(second.url, credential)).status)
      expect(again).toEqual(new Array(5).fill(402))
      second.stop()
    })
  }
})

describe('scheme upto of @x402/hono with @x402/fetch', () => {
  const apiKey = 'k3y-of-a-resource-server'
  beforeAll(async () => {
    const { facilitator } = shop.config
    const apiKeyHashes: Hex[] = [`0x${new Bun.CryptoHasher('sha256').update(apiKey).digest('hex')}`]
    await shop.restart({ ...shop.config, facilitator: { ...facilitator, apiKeyHashes } })
  })
  afterAll(() => shop.restart(shop.config))
  const told = (response: Response) =>
    decodePaymentResponseHeader(response.headers.get('payment-response') ?? '')

  for (const id of [base, robinhood]) {
    test(`the server charges by use on ${id}, and a credential is served once`, async () => {
      const network = networkOf(id)
      let charge = '2345'
      const server = startResourceServer(shop.url, network, { apiKey, charge: () => charge })
      try {
        const before = await shop.balance(id, payee)
        const { response, credential } = await buyFrom(server.url, network, account(1).local())
        expect(response.status).toBe(200)
        expect(response.headers.has('settlement-overrides')).toBe(false)
        expect(told(response)).toMatchObject({ success: true, network: id, amount: '2345' })
        expect((await shop.balance(id, payee)) - before).toBe(2_345n)
        for (charge of ['2345', '1', '0', '10000']) {
          const atOnce = [1, 2, 3].map(() => replay(server.url, credential))
          const statuses = (await Promise.all(atOnce)).map(({ status }) => status)
          expect(statuses).toEqual([402, 402, 402])
        }
        expect((await shop.balance(id, payee)) - before).toBe(2_345n)
      } finally {
        server.stop()
      }
    })
  }

  test('percentages are charged, nothing is charged for 0, and too much is not delivered', async () => {
    const network = networkOf(base)
    let charge = ''
    const server = startResourceServer(shop.url, network, { apiKey, charge: () => charge })
    const buy = () => buyFrom(server.url, network, account(1).local())
    try {
      const before = await shop.balance(base, payee)
      charge = '12.5%'
      const part = await buy()
      expect(told(part.response)).toMatchObject({ success: true, amount: '1250' })
      charge = '0'
      const free = await buy()
      expect(free.response.status).toBe(200)
      expect(told(free.response)).toMatchObject({ success: true, transaction: '', amount: '0' })
      charge = '10001'
      const above = await buy()
      expect(above.response.status).toBe(402)
      expect(told(above.response)).toMatchObject({
        success: false,
        errorReason: 'invalid_upto_evm_payload_settlement_exceeds_amount',
      })
      charge = '10000'
      expect((await replay(server.url, free.credential)).status).toBe(402)
      expect((await shop.balance(base, payee)) - before).toBe(1_250n)
    } finally {
      server.stop()
    }
  })

  test('of concurrent requests one is served, and none after a restart', async () => {
    const network = networkOf(base)
    let served = 0
    const selling = { apiKey, charge: () => String(++served * 10) }
    const first = startResourceServer(shop.url, network, selling)
    const signer = account(1).local()
    const { credential } = await buyFrom(first.url, network, signer, { isUnsent: true })
    const before = await shop.balance(base, payee)
    const atOnce = Array.from({ length: 5 }, () => replay(first.url, credential))
    const answers = await Promise.all(atOnce)
    const paid = answers.filter(({ status }) => status === 200)
    expect(paid).toHaveLength(1)
    const [response] = paid
    if (response === undefined) throw new Error('no answer')
    const { amount } = told(response)
    expect((await shop.balance(base, payee)) - before).toBe(BigInt(amount ?? 0))
    first.stop()
    await shop.restart()
    const second = startResourceServer(shop.url, network, selling)
    for (let i = 0; i < 3; i++) expect((await replay(second.url, credential)).status).toBe(402)
    second.stop()
  })

  test('a payer without gas pays by upto with an EIP-2612 permit', async () => {
    const network = networkOf(robinhood)
    const extensions = ['eip2612GasSponsoring']
    const server = startResourceServer(shop.url, network, {
      apiKey,
      charge: () => '77',
      extensions,
    })
    try {
      const before = await shop.balance(robinhood, payee)
      const rpcUrl = shop.chains[robinhood]?.url ?? ''
      const poor = account(4).local()
      const { response, credential } = await buyFrom(server.url, network, poor, { rpcUrl })
      expect(response.status).toBe(200)
      expect(told(response)).toMatchObject({ success: true, amount: '77' })
      expect((await replay(server.url, credential)).status).toBe(402)
      expect((await shop.balance(robinhood, payee)) - before).toBe(77n)
    } finally {
      server.stop()
    }
  })
})

describe('eip2612GasSponsoring with @x402/fetch', () => {
  // It has USDG, no native gas, and has not approved Permit2.
  const poor = account(3)
  const chainUrl = () => shop.chains[robinhood]?.url ?? ''

  test('gateway and facilitator declare eip2612GasSponsoring', async () => {
    const { extensions } = (await (await fetch(`${shop.url}/supported`)).json()) as {
      extensions: string[]
    }
    expect(extensions).toEqual(['eip2612GasSponsoring', 'erc20ApprovalGasSponsoring'])
    const asked = await fetch(`${shop.url}/m/shop/item`)
    const required = JSON.parse(atob(asked.headers.get('payment-required') ?? ''))
    expect(required.extensions.eip2612GasSponsoring).toEqual({
      info: { version: '1' },
      schema: {},
    })
    expect(asked.headers.get('payment-required')?.length).toBeLessThan(4096)
  })

  for (const flow of ['authorization', 'upfront'] as const) {
    test(`a payer without gas pays a resource server, ${flow}`, async () => {
      const network = networkOf(robinhood)
      const extensions = ['eip2612GasSponsoring']
      const server = startResourceServer(shop.url, network, { method: 'permit2', flow, extensions })
      try {
        const before = await shop.balance(robinhood, payee)
        const { response, credential } = await buyFrom(server.url, network, poor.local(), {
          rpcUrl: chainUrl(),
        })
        expect(response.status).toBe(200)
        expect((await replay(server.url, credential)).status).toBe(402)
        expect((await shop.balance(robinhood, payee)) - before).toBe(10_000n)
      } finally {
        server.stop()
      }
    })
  }

  test('a payer without gas pays the gateway', async () => {
    const url = `${shop.url}/m/shop/item`
    const before = await shop.balance(robinhood, payee)
    const { response, credential } = await buyFrom(url, networkOf(robinhood), poor.local(), {
      rpcUrl: chainUrl(),
    })
    expect(response.status).toBe(200)
    await untilEnded(shop)
    expect((await replay(url, credential)).status).toBe(402)
    expect((await shop.balance(robinhood, payee)) - before).toBe(5_000n)
  })
})

/** A credential for a resource that was not presented yet. */
async function sign(url: string): Promise<string> {
  const asked = await fetch(url)
  const required = JSON.parse(atob(asked.headers.get('payment-required') ?? ''))
  const [accepted] = required.accepts
  const body = await makeBody(networkOf(base), {
    amountAtomic: BigInt(accepted.amount),
    requirements: accepted,
  })
  const { payload } = body.paymentPayload
  const { resource } = required
  return btoa(JSON.stringify({ x402Version: 2, payload, accepted, resource }))
}

describe("mppx's Elysia middleware with x402.facilitator", () => {
  test('a credential of either protocol is settled by the facilitator, once', async () => {
    const { asset, chainId } = networkOf(base)
    const mppx = Mppx.create({
      realm: 'localhost',
      secretKey: 'interop-interop-interop-interop-1234',
      methods: [
        evm({
          currency: evm.assets.base.USDC,
          recipient: payee,
          x402: { facilitator: shop.url },
        }),
      ],
    })
    expect(evm.assets.base.USDC.address).toBe(asset.address)
    const elysia = new Elysia()
      .guard({ beforeHandle: mppx.evm.charge({ amount: '0.01' }) }, (guarded) =>
        guarded.get('/paid', () => ({ served: true })),
      )
      .listen({ port: 0, hostname: '127.0.0.1' })
    const url = `http://127.0.0.1:${elysia.server?.port}/paid`
    try {
      const before = await shop.balance(base, payee)
      const bought = await buyWithMppx({ config: shop.config }, url, account(1))
      expect([bought.response.status, chainId]).toEqual([200, 8453])
      const spent = bought.requests.at(-1)?.headers ?? new Headers()
      expect((await fetch(url, { headers: spent })).status).toBe(402)
      const { response, credential } = await buyFrom(url, networkOf(base), account(2).local())
      expect(response.status).toBe(200)
      await untilEnded(shop)
      expect((await replay(url, credential)).status).toBe(402)
      expect((await shop.balance(base, payee)) - before).toBe(20_000n)
    } finally {
      await elysia.stop(true)
    }
  })
})
