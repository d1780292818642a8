import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, getAddress, type Hex, maxUint256, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, type NodeTransaction } from '../../src/demo/chains'
import { fingerprint } from '../../src/paywall/credential'
import type * as Network from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import { receiptOf, settlementOf } from '../harness/buyer'
import { deploy } from '../harness/chains'
import { buy, payee, type Scheme, type Shop, sign, startShop } from '../harness/shop'
import * as Wallets from '../harness/wallets'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const erc20 = parseAbi([
  'function transfer(address to, uint256 value) returns (bool)',
  'function approve(address spender, uint256 value) returns (bool)',
])
const item = () => `${shop.url}/m/shop/item`
const networks: Network.Id[] = ['eip155:8453', 'eip155:84532', 'eip155:4663']

/** Fields of the latest payment, as another process reads them. */
function lastPayment(): Record<string, unknown> {
  const [row] = shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')
  if (row === undefined) throw new Error('no payment')
  return row
}

const word = (address: string) => `0x${address.slice(2).toLowerCase().padStart(64, '0')}`
const transferTopic = '0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef'

/** Checks that the payment names the one log that moved exactly its money. */
async function expectSettled(network: Network.Id, payer: string, method: string): Promise<Hex> {
  // It is recorded after the answer was sent.
  await until('it is delivered', () => lastPayment().delivery === 'delivered')
  const payment = lastPayment()
  expect(payment).toMatchObject({
    network,
    payer,
    payee,
    method,
    amount_atomic: '5000',
    state: 'confirmed',
    delivery: 'delivered',
    attempts: 1,
    truncated: 0,
    upstream_status: 200,
  })
  const hash = payment.transaction_hash as Hex
  const receipt = (await shop.chains[network]?.rpc('eth_getTransactionReceipt', [hash])) as {
    status: Hex
    logs: { address: string; logIndex: Hex; topics: Hex[]; data: Hex }[]
  }
  expect(receipt.status).toBe('0x1')
  const log = receipt.logs.find(({ logIndex }) => Number(logIndex) === payment.log_index)
  expect(log?.topics as string[]).toEqual([transferTopic, word(payer), word(payee)])
  expect(BigInt(log?.data ?? '0x0')).toBe(5000n)
  expect(log?.address).toBe(String(payment.asset).toLowerCase())
  return hash
}

/** The receipt in the buyer's protocol, signed by the published key. */
function expectReceipt(response: Response, network: Network.Id, payer: string, hash: Hex): void {
  const encoded =
    response.headers.get('payment-receipt') ?? response.headers.get('payment-response') ?? ''
  const receipt = Receipt.parse(encoded)
  if (isFault(receipt)) throw new Error(receipt.detail)
  expect(Receipt.verify(receipt)).toBe(shop.app.receiptAddress)
  expect(receipt.payload).toMatchObject({ network, payer, transaction: hash })
  const request = fingerprint('GET', '/m/shop/item', '', {})
  expect(receipt.payload.resourceUrl).toBe(
    `http://localhost:4020/m/shop/item#request=${request}&amount=5000`,
  )
}

type Way = { scheme: Scheme; network: Network.Id; bare?: boolean }
const ways: Way[] = [
  ...networks.map((network) => ({ scheme: 'mpp' as const, network })),
  { scheme: 'mpp-permit2', network: 'eip155:4663' },
  ...networks.map((network) => ({ scheme: 'x402-eip3009' as const, network })),
  { scheme: 'x402-permit2', network: 'eip155:4663' },
]

const cases = ways.flatMap((way) =>
  way.scheme.startsWith('x402') ? [way, { ...way, bare: true }] : [way],
)
const nameOf = ({ scheme, network, bare }: Way) =>
  `${scheme}${bare ? ' without accepted' : ''} on ${network}`

describe('a receipt', () => {
  test('attack: a receipt of one query proves no other one, and a long one is in its hash', async () => {
    const urls = ['?symbol=A', '?symbol=B', `?note=${'x'.repeat(400)}`]
    const receipts = await Promise.all(
      urls.map(async (search) => {
        const url = `${shop.url}/m/shop/item${search}`
        const response = await fetch(url, { headers: await sign(url, { scheme: 'mpp', buyer: 1 }) })
        const receipt = Receipt.parse(response.headers.get('payment-receipt') ?? '')
        if (isFault(receipt)) throw new Error(receipt.detail)
        expect(Receipt.verify(receipt)).toBe(shop.app.receiptAddress)
        return receipt
      }),
    )
    expect(receipts.map(({ payload }) => new URL(payload.resourceUrl).search)).toEqual([
      ...urls.slice(0, 2),
      '',
    ])
    expect(receipts.map((each) => Receipt.purchaseOf(each).request)).toEqual(
      urls.map((search) => fingerprint('GET', '/m/shop/item', search, {})),
    )
    const [a] = receipts
    if (!a) throw new Error('no receipt')
    for (const [from, to] of [
      ['symbol=A', 'symbol=B'],
      ['amount=5000', 'amount=5'],
    ] as const) {
      const resourceUrl = a.payload.resourceUrl.replace(from, to)
      expect(resourceUrl).not.toBe(a.payload.resourceUrl)
      const changed = { ...a, payload: { ...a.payload, resourceUrl } }
      expect(Receipt.verify(changed)).not.toBe(shop.app.receiptAddress)
    }
  })
})

describe('a wallet with a key', () => {
  for (const way of cases) {
    const { scheme, network } = way
    test(`pays by ${nameOf(way)}`, async () => {
      const { address } = account(1)
      const before = [await shop.balance(network, address), await shop.balance(network, payee)]
      const response = await buy(item(), way)
      expect(response.status).toBe(200)
      expect(await response.json()).toEqual({ ok: true })
      const after = [await shop.balance(network, address), await shop.balance(network, payee)]
      expect(after).toEqual([(before[0] ?? 0n) - 5000n, (before[1] ?? 0n) + 5000n])
      const method = scheme.endsWith('permit2') ? 'permit2' : 'eip3009'
      expectReceipt(response, network, address, await expectSettled(network, address, method))
      expect(shop.upstream.requests).toHaveLength(1)
    })
  }

  test('receipts are in the protocol that paid', async () => {
    const mpp = await buy(item())
    expect(receiptOf(mpp)).toMatchObject({
      status: 'success',
      method: 'evm',
      chainId: 8453,
      reference: lastPayment().transaction_hash,
      issuer: shop.app.receiptAddress,
      signature: expect.stringMatching(/^0x[0-9a-f]{130}$/),
    })
    expect(mpp.headers.has('payment-response')).toBe(false)
    const x402 = await buy(item(), { scheme: 'x402-eip3009' })
    expect(settlementOf(x402)).toMatchObject({
      success: true,
      transaction: lastPayment().transaction_hash,
      network: 'eip155:8453',
      payer: account(1).address,
      amount: '5000',
    })
    expect(x402.headers.get('x-payment-response')).toBe(x402.headers.get('payment-response'))
    expect(x402.headers.has('payment-receipt')).toBe(false)
  })

  test('the address that signs receipts is published', async () => {
    const document = await (await fetch(`${shop.url}/openapi.json`)).text()
    expect(document).toContain(shop.app.receiptAddress)
    const wellKnown = await (await fetch(`${shop.url}/.well-known/x402`)).text()
    expect(wellKnown).toContain(shop.app.receiptAddress)
  })

  test('a payment takes one call to simulate, one to send, and at most one more', async () => {
    await buy(item())
    const credential = await sign(item())
    const before = shop.taps['eip155:8453']?.calls.length ?? 0
    await fetch(item(), { headers: credential })
    const calls = shop.taps['eip155:8453']?.calls.slice(before).map(({ method }) => method) ?? []
    expect(calls[0]).toBe('eth_call')
    expect(calls[1]).toStartWith('eth_sendRawTransaction')
    expect(calls.length).toBeLessThanOrEqual(3)
  })

  test('X-PAYMENT alone pays, and so do both names with one value', async () => {
    for (const both of [false, true]) {
      const { 'payment-signature': value = '' } = await sign(item(), { scheme: 'x402-eip3009' })
      const headers = both
        ? { 'x-payment': value, 'payment-signature': value }
        : { 'x-payment': value }
      expect((await fetch(item(), { headers })).status).toBe(200)
    }
  })

  test('url-safe base64 is accepted, too', async () => {
    const { 'payment-signature': value = '' } = await sign(item(), { scheme: 'x402-eip3009' })
    const urlSafe = value.replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
    const response = await fetch(item(), { headers: { 'payment-signature': urlSafe } })
    expect(response.status).toBe(200)
  })
})

describe('a wallet that is a contract', () => {
  const wallets = new Map<Network.Id, Hex>()
  const owner = account(1)
  beforeAll(async () => {
    await Promise.all(
      networks.map(async (network) => {
        const chain = shop.chains[network]
        const asset = shop.config.networks.find(({ id }) => id === network)?.asset
        if (chain === undefined || asset === undefined) throw new Error(`no ${network}`)
        const wallet = await deploy(chain, Wallets.SmartWallet, [owner.address])
        const fund = encodeFunctionData({
          abi: erc20,
          functionName: 'transfer',
          args: [wallet, 1_000_000n],
        })
        const approve = encodeFunctionData({
          abi: erc20,
          functionName: 'approve',
          args: [Permit.permit2Address, maxUint256],
        })
        const calls: NodeTransaction[] = [
          { from: owner.address, to: asset.address, data: fund },
          {
            from: owner.address,
            to: wallet,
            data: encodeFunctionData({
              abi: Wallets.SmartWallet.abi,
              functionName: 'execute',
              args: [asset.address, 0n, approve],
            }),
          },
        ]
        for (const call of calls) await execute(chain, [call])
        wallets.set(network, getAddress(wallet))
      }),
    )
  })

  for (const way of cases) {
    const { scheme, network } = way
    test(`pays by ${nameOf(way)}`, async () => {
      const wallet = wallets.get(network) ?? '0x'
      const response = await buy(item(), { ...way, from: wallet })
      expect(response.status).toBe(200)
      expect(await shop.balance(network, wallet)).toBeLessThan(1_000_000n)
      const method = scheme.endsWith('permit2') ? 'permit2' : 'eip3009'
      expectReceipt(response, network, wallet, await expectSettled(network, wallet, method))
    })
  }
})

describe('an account with delegated code', () => {
  for (const way of cases.filter(({ network }) => network !== 'eip155:84532')) {
    const { scheme, network } = way
    test(`pays by ${nameOf(way)}`, async () => {
      const chain = shop.chains[network]
      if (chain === undefined) throw new Error(`no ${network}`)
      const { address } = account(2)
      const delegate = await deploy(chain, Wallets.SmartWallet, [address])
      // The prefix of EIP-7702 before the address of the code.
      await chain.rpc('anvil_setCode', [address, `0xef0100${delegate.slice(2)}`])
      const before = await shop.balance(network, address)
      const response = await buy(item(), { ...way, buyer: 2 })
      await chain.rpc('anvil_setCode', [address, '0x'])
      expect(response.status).toBe(200)
      expect(await shop.balance(network, address)).toBe(before - 5000n)
      const method = scheme.endsWith('permit2') ? 'permit2' : 'eip3009'
      expectReceipt(response, network, address, await expectSettled(network, address, method))
    })
  }
})
