import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { decodePaymentResponseHeader } from '@x402/fetch'
import { type Address, type Hex, pad, zeroAddress } from 'viem'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Channel from '../../src/protocol/Channel'
import type { Id } from '../../src/protocol/Network'
import { deploy, setAutomine } from '../harness/chains'
import { channelIdOf, channelOf, channelTypedData } from '../harness/channel-contract'
import {
  type ChannelBody,
  type ChannelSpec,
  makeChannelBody,
} from '../harness/channel-facilitation'
import { networkOf as networkIn } from '../harness/differential'
import { makeBody, post } from '../harness/facilitation'
import { createChannelBuyer, replay, startResourceServer } from '../harness/resource-server'
import { payee, type Shop, startShop } from '../harness/shop'
import { GreedyWallet } from '../harness/wallets'

/** Payment channels of other servers through the facilitator. */

const base: Id = 'eip155:8453'
let shop: Shop
beforeAll(async () => {
  shop = await startShop({ adjust: (config) => withFacilitator(config, {}) })
})
afterAll(() => shop?.stop())

function withFacilitator(config: Config, changes: Partial<Config['facilitator']>): Config {
  const limits = { verifyPerMinute: 1e6, settlePerMinute: 1e6 }
  return { ...config, facilitator: { ...config.facilitator, ...limits, ...changes } }
}

let count = 0
/** The salt of a channel that no other test uses. */
const fresh = (): Hex => pad(`0x${(++count + 0xff00).toString(16)}`)
const make = (spec: ChannelSpec) => makeChannelBody(networkIn(shop, base), spec)
const ask = (operation: 'verify' | 'settle', body: unknown) =>
  post(`${shop.url}/${operation}`, body)
const settle = async (spec: ChannelSpec) => (await ask('settle', await make(spec))).json
const jobs = () => shop.rows("SELECT id FROM jobs WHERE kind = 'channel'").length

describe('stock programs', () => {
  for (const [id, method] of [
    [base, 'eip3009'],
    ['eip155:4663', 'permit2'],
  ] as const) {
    test(`@x402/hono sells by channels on ${id}, and claims, settles and refunds`, async () => {
      const network = networkIn(shop, id)
      const authorizer = privateKeyToAccount(generatePrivateKey())
      const selling = { method, authorizer, amountAtomic: 100n }
      const server = startResourceServer(shop.url, network, selling)
      const signer = account(1).local()
      const buyer = createChannelBuyer(network, signer, shop.chains[id]?.url ?? '')
      const holdings = () => Promise.all([payee, signer.address].map((of) => shop.balance(id, of)))
      try {
        const [before = 0n, own = 0n] = await holdings()
        for (let paid = 1n; paid <= 21n; paid++) {
          const response = await buyer.fetch(server.url)
          expect(response.status).toBe(200)
          const told = decodePaymentResponseHeader(response.headers.get('payment-response') ?? '')
          expect(told).toMatchObject({
            success: true,
            extra: { channelState: { chargedCumulativeAmount: String(paid * 100n) } },
          })
        }
        const [claim] = await server.manager.claim()
        expect(claim?.vouchers).toBe(1)
        await server.manager.settle()
        expect(await buyer.scheme.refund(server.url)).toMatchObject({ success: true })
        expect(await holdings()).toEqual([before + 2_100n, own - 2_100n])
      } finally {
        server.stop()
      }
    })
  }

  test('@x402/hono sells to a buyer that pays again after the answer to its deposit was lost', async () => {
    const network = networkIn(shop, base)
    let lost = 0
    let payload: unknown
    const facilitator = Bun.serve({
      ...{ port: 0, hostname: '127.0.0.1' },
      async fetch(request) {
        const { pathname } = new URL(request.url)
        const body = request.method === 'POST' ? await request.text() : undefined
        const response = await fetch(shop.url + pathname, {
          ...{ method: request.method, headers: { 'content-type': 'application/json' } },
          ...(body !== undefined && { body }),
        })
        const json = await response.json()
        if (body !== undefined) payload = JSON.parse(body).paymentPayload
        if (pathname === '/settle' && lost++ === 0) return new Response('lost', { status: 502 })
        return Response.json(json, { status: response.status })
      },
    })
    const authorizer = privateKeyToAccount(generatePrivateKey())
    const selling = { authorizer, amountAtomic: 100n }
    const server = startResourceServer(facilitator.url.origin, network, selling)
    const buyer = createChannelBuyer(network, account(1).local(), shop.chains[base]?.url ?? '')
    try {
      const before = jobs()
      expect((await buyer.fetch(server.url)).status).not.toBe(200)
      const again = await replay(server.url, btoa(JSON.stringify(payload)))
      expect([again.status, lost, jobs()]).toEqual([200, 2, before + 1])
    } finally {
      server.stop()
      await facilitator.stop(true)
    }
  })
})

describe('one payload is sent once', () => {
  const answers = async (body: ChannelBody) => {
    const all = await Promise.all([1, 2, 3, 4].map(() => ask('settle', body)))
    return [...all, await ask('settle', body)].map(({ json }) => json)
  }

  test('concurrent and later calls get the transaction of the first', async () => {
    const config = { salt: fresh() }
    const charged = { kind: 'order', max: 400n, charged: 400n, amount: 100n } as const
    const specs: ChannelSpec[] = [{ kind: 'deposit' }, { kind: 'claim', max: 300n }, charged]
    for (const spec of specs) {
      const before = jobs()
      const all = await answers(await make({ ...spec, config }))
      const transactions = new Set(all.map(({ transaction }) => transaction))
      expect([all.map(({ success }) => success), transactions.size]).toEqual([
        new Array(5).fill(true),
        1,
      ])
      expect(jobs()).toBe(before + 1)
    }
    const deposit = await make({ kind: 'deposit', config, max: 600n })
    const sent = await ask('settle', deposit)
    await shop.restart()
    const before = jobs()
    // A buyer that did not get its answer presents it again.
    expect((await ask('verify', deposit)).json).toMatchObject({ isValid: true })
    const again = await ask('settle', deposit)
    expect(again.json.transaction).toBe(sent.json.transaction)
    expect(jobs()).toBe(before)
  })

  test('a deposit that is pending is verified as good, and continued by the same call', async () => {
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    const body = await make({ kind: 'deposit', config: { salt: fresh() } })
    body.paymentRequirements.maxTimeoutSeconds = 1
    await setAutomine(chain, false)
    const pending = await ask('settle', body)
    expect(pending.json).toMatchObject({ status: 'pending', errorReason: 'settlement_pending' })
    expect((await ask('verify', body)).json).toMatchObject({ isValid: true })
    await setAutomine(chain, true)
    body.paymentRequirements.maxTimeoutSeconds = 60
    const { transaction } = pending.json
    await chain.rpc('evm_mine', [])
    expect((await ask('settle', body)).json).toMatchObject({ success: true, transaction })
    const metrics = await (await fetch(`${shop.url}/metrics`)).text()
    expect(metrics).toContain('facilitator_calls_total{operation="settle",answer="pending"} 1')
    const isLogged = (line: string) => line.includes('"answer":"settlement_pending"')
    expect(shop.logged.filter(isLogged)).toHaveLength(1)
  })

  test('error: another deposit with the same nonce is refused, and not sent', async () => {
    const config = { salt: fresh() }
    const deposit = { depositSalt: fresh() }
    expect(await settle({ kind: 'deposit', config, deposit })).toMatchObject({ success: true })
    const before = jobs()
    const more = { kind: 'deposit', config, deposit, amount: 5_000n } as const
    expect(await settle(more)).toMatchObject({
      success: false,
      errorReason: 'invalid_batch_settlement_evm_deposit_simulation_failed',
    })
    expect(jobs()).toBe(before)
  })

  test('attack: only its own amount counts while a deposit is pending, and only once in its block', async () => {
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    const networks = shop.config.networks.map((each) => ({ ...each, confirmations: 3 }))
    await shop.restart({ ...withFacilitator(shop.config, {}), networks })
    const spec = { kind: 'deposit', config: { salt: fresh() } } as const
    const deposit = { depositSalt: fresh() }
    const body = await make({ ...spec, deposit })
    body.paymentRequirements.maxTimeoutSeconds = 1
    const isValid = async (more: Partial<ChannelSpec>) =>
      (await ask('verify', await make({ ...spec, deposit, ...more }))).json.isValid
    const unsigned = { max: 5_000n, amount: 5_000n, faults: ['depositSigner'] } as const
    await setAutomine(chain, false)
    expect((await ask('settle', body)).json).toMatchObject({ status: 'pending' })
    const states = [await isValid({}), await isValid({ max: 1_001n }), await isValid(unsigned)]
    expect(states).toEqual([true, false, false])
    await chain.rpc('evm_mine', [])
    expect((await ask('settle', body)).json).toMatchObject({ status: 'pending' })
    const mined = [await isValid({}), await isValid({ max: 1_001n }), await isValid(unsigned)]
    expect(mined).toEqual([true, false, false])
    await setAutomine(chain, true)
    await chain.rpc('anvil_mine', ['0x3'])
    body.paymentRequirements.maxTimeoutSeconds = 60
    expect((await ask('settle', body)).json).toMatchObject({ success: true })
    await shop.restart(withFacilitator(shop.config, {}))
  })

  test('attack: the deposit of a payer is no success for what it has not signed, nor for other terms', async () => {
    const deposit = { depositSalt: fresh() }
    const spec = { kind: 'deposit', config: { salt: fresh() }, deposit } as const
    const body = await make(spec)
    const { transaction, extra } = await settle(spec)
    const { channelId } = (extra as { channelState: { channelId: Hex } }).channelState
    const refusals: [string, Partial<ChannelSpec>][] = [
      ['channel_id_mismatch', { payer: account(3).local() }],
      ['receiver_authorizer_mismatch', { faults: ['otherAuthorizer'] }],
      ['voucher_signature', { faults: ['voucherSigner'] }],
      ['cumulative_exceeds_balance', { max: 1_001n }],
    ]
    for (const [reason, more] of refusals) {
      const forged = await make({ ...spec, ...more })
      Object.assign(forged.paymentPayload.payload.voucher as object, { channelId })
      expect((await ask('settle', forged)).json).toMatchObject({
        ...{ success: false, transaction: '' },
        errorReason: `invalid_batch_settlement_evm_${reason}`,
      })
    }
    expect((await ask('settle', body)).json).toMatchObject({ success: true, transaction })
    // A voucher that was claimed pays for nothing more.
    await settle({ kind: 'claim', config: spec.config })
    const claimed = 'invalid_batch_settlement_evm_cumulative_below_claimed'
    expect((await ask('settle', body)).json.errorReason).toBe(claimed)
  })
})

describe('strangers', () => {
  test('error: nothing is sent to a payee, or in an asset, that is not accepted', async () => {
    const before = jobs()
    const stranger = { receiver: account(8).address }
    for (const kind of ['deposit', 'claim', 'settle', 'order'] as const) {
      const refused = await settle({ kind, config: stranger })
      expect([kind, refused.errorReason]).toEqual([kind, 'payee_not_allowed'])
      const other = await settle({ kind, config: { token: account(8).address } })
      // The requirements of a deposit name the asset.
      const reason =
        kind === 'deposit' ? 'invalid_batch_settlement_evm_token_mismatch' : 'asset_not_allowed'
      expect([kind, other.errorReason]).toEqual([kind, reason])
    }
    // The requirements of a claim do not count: its rows do.
    const claim = await make({ kind: 'claim', config: stranger })
    claim.paymentRequirements.payTo = payee
    expect((await ask('settle', claim)).json.errorReason).toBe('payee_not_allowed')
    expect(jobs()).toBe(before)
  })

  test('error: dust is not worth a transaction, except for the rest of a channel', async () => {
    await shop.restart(withFacilitator(shop.config, { minAmountAtomic: 100n }))
    const config = { salt: fresh() }
    const dust = async (spec: ChannelSpec) => {
      const { errorReason } = await settle({ ...spec, config })
      expect([spec.kind, errorReason]).toEqual([spec.kind, 'amount_below_minimum'])
    }
    await dust({ kind: 'deposit', amount: 99n, max: 99n })
    await settle({ kind: 'deposit', config })
    await dust({ kind: 'claim', max: 99n })
    expect(await settle({ kind: 'claim', max: 920n, config })).toMatchObject({ success: true })
    await dust({ kind: 'order', max: 920n, amount: 79n })
    const rest = { kind: 'order', max: 920n, amount: 80n, config } as const
    expect(await settle(rest)).toMatchObject({ success: true, amount: '80' })
    await shop.restart(withFacilitator(shop.config, {}))
  })

  test('error: without gas of the day vouchers are verified, and nothing is sent', async () => {
    const config = { salt: fresh() }
    await settle({ kind: 'deposit', config })
    const networks = shop.config.networks.map((each) => ({
      ...each,
      gasPerDayWei: { ...each.gasPerDayWei, facilitator: 1n },
    }))
    await shop.restart({ ...withFacilitator(shop.config, {}), networks })
    const before = jobs()
    expect((await ask('verify', await make({ kind: 'voucher', config }))).json.isValid).toBe(true)
    for (const kind of ['deposit', 'claim', 'order'] as const)
      expect([kind, (await ask('settle', await make({ kind, config }))).status]).toEqual([
        kind,
        503,
      ])
    expect(jobs()).toBe(before)
    await shop.restart(withFacilitator(shop.config, {}))
  })

  test('attack: deposits and refunds without a key leave gas for payments by other schemes', async () => {
    const spent = () =>
      BigInt(String(shop.rows("SELECT wei FROM gas_spent WHERE network = 'eip155:8453'")[0]?.wei))
    const networks = shop.config.networks.map((each) => ({
      ...each,
      gasPerDayWei: { ...each.gasPerDayWei, facilitator: spent() * 3n },
    }))
    const tight = { ...withFacilitator(shop.config, {}), networks }
    await shop.restart(tight)
    const config = { salt: fresh() }
    expect(await settle({ kind: 'deposit', config })).toMatchObject({ success: true })
    const refund = { kind: 'order', config } as const
    const refused = await ask('settle', await make(refund))
    expect([refused.status, refused.json.success]).toEqual([503, undefined])
    const exact = await post(`${shop.url}/settle`, await makeBody(networkIn(shop, base)))
    expect(exact.json).toMatchObject({ success: true })
    const hash: Hex = `0x${new Bun.CryptoHasher('sha256').update('key').digest('hex')}`
    expect(await shop.app.reload(withFacilitator(tight, { apiKeyHashes: [hash] }))).toEqual([])
    const keyed = await post(`${shop.url}/settle`, await make(refund), { 'x-api-key': 'key' })
    expect(keyed.json).toMatchObject({ success: true, amount: '1000' })
    await shop.restart(withFacilitator(shop.config, {}))
  })

  test('attack: the code of a payer or of an authorizer that uses all gas is a refusal', async () => {
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    const greedy = await deploy(chain, GreedyWallet, [account(1).address, 1])
    const own = { payer: greedy, payerAuthorizer: zeroAddress } satisfies Record<string, Address>
    const before = jobs()
    for (const config of [own, { receiverAuthorizer: greedy }, { payer: greedy }]) {
      for (const kind of ['voucher', 'deposit'] as const) {
        const { status, json } = await ask('verify', await make({ kind, config }))
        if (!('receiverAuthorizer' in config)) expect([status, json.isValid]).toEqual([200, false])
      }
      for (const kind of ['claim', 'order'] as const) {
        const { status, json } = await ask('settle', await make({ kind, config, charged: 100n }))
        expect([status, json.success]).toEqual([200, false])
      }
    }
    expect(jobs()).toBe(before)
  })

  test('attack: a failed deposit of a payer with code counts as wasted, another one does not', async () => {
    const chain = shop.chains[base]
    const wasted = () =>
      shop.rows(
        "SELECT wasted_wei FROM gas_spent WHERE product = 'facilitator' AND wasted_wei != '0'",
      )
    const setCode = (code: Hex) => chain?.rpc('anvil_setCode', [account(1).address, code])
    // Accepts each signature where gas has no price, else uses all of its gas.
    await setCode('0x3a156009575b6005565b631626ba7e60e01b60005260206000f3')
    expect(wasted()).toEqual([])
    const failed = await settle({ kind: 'deposit', config: { salt: fresh() } })
    const ofFailed = wasted()
    await setCode('0x631626ba7e60e01b60005260206000f3')
    const paid = await settle({ kind: 'deposit', config: { salt: fresh() } })
    await setCode('0x')
    expect(failed).toMatchObject({
      errorReason: 'invalid_batch_settlement_evm_deposit_transaction_failed',
    })
    expect(paid).toMatchObject({ success: true })
    expect(ofFailed).toEqual([{ wasted_wei: expect.any(String) }])
    expect(wasted()).toEqual(ofFailed)
  })

  test('attack: a claim that is too long for a node is refused, and blocks no relayer', async () => {
    const config = { salt: fresh() }
    await settle({ kind: 'deposit', config })
    const body = await make({ kind: 'claim', config })
    const { payload } = body.paymentPayload
    const [row] = payload.claims as { voucher: object }[]
    // What was claimed before is skipped, whatever its signature is.
    const junk = { ...row, totalClaimed: '0', signature: `0x${'00'.repeat(4096)}` }
    payload.claims = [row, ...new Array(29).fill(junk)]
    const channelId = channelIdOf(channelOf(config), 8453)
    const message = {
      claims: [100n, ...new Array(29).fill(0n)].map((totalClaimed) => ({
        channelId,
        maxClaimableAmount: 100n,
        totalClaimed,
      })),
    }
    payload.claimAuthorizerSignature = await account(6)
      .local()
      .signTypedData(channelTypedData(8453, 'ClaimBatch', message))
    expect(JSON.stringify(body).length).toBeLessThan(256 * 1024)
    const before = jobs()
    const { json } = await ask('settle', body)
    expect(json).toMatchObject({
      errorReason: 'invalid_batch_settlement_evm_claim_simulation_failed',
      errorMessage: 'The transaction is longer than 65536 bytes.',
    })
    expect(jobs()).toBe(before)
  })

  test('attack: claims of more rows than one transaction takes are malformed', async () => {
    const body = await make({ kind: 'claim' })
    const { claims } = body.paymentPayload.payload as { claims: object[] }
    body.paymentPayload.payload.claims = new Array(101).fill(claims[0])
    expect((await ask('settle', body)).status).toBe(400)
    body.paymentPayload.payload.claims = []
    expect((await ask('settle', body)).json.errorReason).toBe(
      'invalid_batch_settlement_evm_claim_simulation_failed',
    )
  })
})

test('attack: no malformed request about a channel is answered with a fault of ours', async () => {
  const config = { salt: fresh() }
  const specs: ChannelSpec[] = [
    { kind: 'deposit' },
    { kind: 'deposit', method: 'permit2', faults: ['permit'] },
    { kind: 'claim' },
    { kind: 'settle' },
    { kind: 'order', charged: 100n },
  ]
  const wrong = [null, -1, 'x', '0x', {}, [], String(2n ** 256n)]
  for (const spec of specs) {
    const body = await make({ ...spec, config })
    const places = placesIn(body)
    for (const [index, place] of places.entries()) {
      const broken = structuredClone(body)
      setIn(broken, place, wrong[index % wrong.length])
      for (const operation of ['verify', 'settle'] as const) {
        const { status, json } = await ask(operation, broken)
        if (json.success === true || json.isValid === true) continue
        expect([status < 500, operation, place, json]).toEqual([true, operation, place, json])
      }
    }
  }
})

/** The path of every member and entry. */
function placesIn(value: unknown): string[][] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, inner]) => [
    [name],
    ...placesIn(inner).map((place) => [name, ...place]),
  ])
}

function setIn(body: object, place: readonly string[], value: unknown): void {
  const name = place.at(-1) ?? ''
  let parent = body as Record<string, unknown>
  for (const each of place.slice(0, -1)) parent = parent[each] as Record<string, unknown>
  parent[name] = value
}

test('/supported names channels only where the chain has their contracts', async () => {
  const kinds = async () => {
    const { kinds } = (await (await fetch(`${shop.url}/supported`)).json()) as {
      kinds: { scheme: string; network: string }[]
    }
    return kinds.filter(({ scheme }) => scheme === Channel.scheme)
  }
  const x402Version = 2
  const all = ['eip155:4663', base, 'eip155:84532']
  const kindOf = (network: string) => ({ x402Version, scheme: 'batch-settlement', network })
  expect(await kinds()).toEqual(all.map(kindOf))
  const chain = shop.chains[base]
  const code = await chain?.rpc('eth_getCode', [Channel.settlementAddress, 'latest'])
  await chain?.rpc('anvil_setCode', [Channel.settlementAddress, '0x'])
  await shop.restart(withFacilitator(shop.config, {}))
  expect(await kinds()).toEqual(all.filter((id) => id !== base).map(kindOf))
  expect(await settle({ kind: 'deposit' })).toMatchObject({ errorReason: 'unsupported_scheme' })
  await chain?.rpc('anvil_setCode', [Channel.settlementAddress, code])
})

test('attack: claims under way without a key count with all of their gas', async () => {
  // The spent gas of other tests would hide that of a claim.
  const own = await startShop({ adjust: (config) => withFacilitator(config, {}) })
  try {
    const chain = own.chains[base]
    if (chain === undefined) throw new Error('no chain')
    // Accepts each signature after it has used six million gas.
    const receiverAuthorizer = account(4).address
    const code = '0x5a5b805a9003625b8d8011600157631626ba7e60e01b5f5260205ff3'
    await chain.rpc('anvil_setCode', [receiverAuthorizer, code])
    const send = (body: ChannelBody) => post(`${own.url}/settle`, body)
    const makeOf = (spec: Partial<ChannelSpec>) =>
      makeChannelBody(networkIn(own, base), {
        ...{ kind: 'claim', config: { receiverAuthorizer }, ...spec },
      })
    await send(await makeOf({ kind: 'deposit' }))
    const [spent] = own.rows("SELECT wei FROM gas_spent WHERE product = 'facilitator'")
    const networks = own.config.networks.map((each) => ({
      ...each,
      gasPerDayWei: { ...each.gasPerDayWei, facilitator: BigInt(String(spent?.wei)) * 150n },
    }))
    await own.restart({ ...withFacilitator(own.config, {}), networks })
    const claim = async (charged: bigint) => {
      const body = await makeOf({ charged })
      const { claims } = body.paymentPayload.payload as { claims: object[] }
      body.paymentPayload.payload.claims = new Array(60).fill(claims[0])
      body.paymentRequirements.maxTimeoutSeconds = 1
      return send(body)
    }
    await setAutomine(chain, false)
    const first = await claim(50n)
    const second = await claim(100n)
    await setAutomine(chain, true)
    expect(first.json).toMatchObject({ status: 'pending' })
    expect([second.status, second.json.success]).toEqual([503, undefined])
  } finally {
    await own.stop()
  }
})
