import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { proxyAddress } from '../../src/protocol/Upto'
import { ask, settlementOf } from '../harness/buyer'
import type { Reply } from '../harness/upstream'
import { uptoOffer } from '../harness/upto'
import {
  answering,
  base,
  body,
  costOf,
  event,
  events,
  json,
  type ModelShop,
  nodeAway,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** The relayers that settle charges of the x402 scheme `upto`. */

const [first, second, desk] = [account(0), account(6), account(8)] as const
let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  const keys = `${first.privateKey},${second.privateKey}`
  shop = await startModels({ env: { RELAYER_KEYS: keys, DESK_KEY: desk.privateKey } })
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

const paid = async () => 10_000_000n - (await shop.tokensOf(payer.address))
const posting = { method: 'POST', headers: json, body }
const errorOf = (response: Response) => [response.status, settlementOf(response).errorReason]
const offered = async (): Promise<Address | undefined> => {
  const { required } = await ask(shop.chat(), posting)
  return uptoOffer(required, base)?.extra.facilitatorAddress as Address | undefined
}
/** Starts again with these relayers. */
const restartWith = (...keys: readonly (typeof first)[]) => {
  const relayerKeys = keys.map(({ privateKey }) => Crypto.bytes(privateKey))
  Object.assign(shop.secrets, { relayerKeys })
  return shop.restart()
}
const setWei = (address: Address, wei: bigint) =>
  shop.chain().rpc('anvil_setBalance', [address, `0x${wei.toString(16)}`])
const funded = 10n ** 22n
const later = () => BigInt(Math.floor(shop.now() / 1000) + 300)

const tap = () => {
  const found = shop.taps[base]
  if (found === undefined) throw new Error('no tap')
  return found
}

/** Ends with a charge that is written, and a node that is away. `isStream`: its buyer has the answer. */
async function unsettled(facilitator: Address, isStream: boolean) {
  const credential = await shop.sign({
    signer: payer,
    facilitator,
    accepted: acceptedBy(facilitator),
    deadline: later(),
  })
  shop.upstream.script = (_, reply) => {
    tap().intercept = nodeAway
    const text = isStream ? event(usage(7, 20)) : usage(7, 20)
    reply.send(200, text, isStream ? events : json)
  }
  const response = await shop.pay(credential)
  expect(response.status).toBe(isStream ? 200 : 503)
  await response.text()
  await shop.becomes('metered')
  shop.upstream.script = answering(usage(7, 20))
  return credential
}
const acceptedBy = (facilitatorAddress: Address) => ({
  extra: { name: 'USD Coin', version: '2', assetTransferMethod: 'permit2', facilitatorAddress },
})

describe('several relayers', () => {
  test('several relayers take turns, and each settles the charges that name it', async () => {
    shop.upstream.script = answering(usage(7, 20))
    const seen = new Set<string>()
    for (let turn = 0; turn < 2; turn++) {
      const named = await offered()
      seen.add(String(named))
      expect((await shop.buy({ signer: payer })).status).toBe(200)
      const [row] = shop.rows('SELECT relayer FROM transactions ORDER BY rowid DESC LIMIT 1')
      expect(String(row?.relayer).toLowerCase()).toBe(String(named).toLowerCase())
      // Offers are made anew every minute.
      shop.advance(61_000)
    }
    shop.advance(-122_000)
    expect(seen).toEqual(new Set([first.address, second.address]))
  })

  test('a credential may name any relayer', async () => {
    shop.upstream.script = answering(usage(7, 20))
    for (const { address } of [first, second]) {
      const terms = { signer: payer, facilitator: address, accepted: acceptedBy(address) }
      expect((await shop.buy(terms)).status).toBe(200)
      const [row] = shop.rows('SELECT relayer FROM transactions ORDER BY rowid DESC LIMIT 1')
      expect(String(row?.relayer).toLowerCase()).toBe(address.toLowerCase())
    }
  })

  test("error: the desk's own account is refused", async () => {
    // The desk has an account on the network of the stock desk only.
    const token = { name: 'Global Dollar', version: '1', assetTransferMethod: 'permit2' }
    const extra = { ...token, facilitatorAddress: desk.address }
    const terms = { facilitator: desk.address, network: 'eip155:4663', accepted: { extra } }
    expect(errorOf(await shop.buy(terms))).toEqual([402, 'upto_facilitator_mismatch'])
    const other = { facilitator: desk.address, accepted: acceptedBy(desk.address) }
    const response = await shop.buy({ signer: payer, ...other })
    expect(errorOf(response)).toEqual([402, 'upto_facilitator_mismatch'])
    expect(shop.upstream.requests).toEqual([])
  })

  test('many charges of one relayer at once are settled, each once', async () => {
    shop.upstream.script = answering(usage(7, 20))
    const wallets = await Promise.all(Array.from({ length: 30 }, () => shop.wallet()))
    const before = await shop.paid()
    const all = await Promise.all(wallets.map((signer) => shop.buy({ signer })))
    expect(all.map(({ status }) => status)).toEqual(all.map(() => 200))
    expect(await shop.paid()).toBe(before + 30n * BigInt(costOf(7, 20)))
  })
})

describe('a relayer without money', () => {
  test('a relayer without money is not offered, and charges that name it wait', async () => {
    const accepted = acceptedBy(second.address)
    const credential = await shop.sign({ signer: payer, facilitator: second.address, accepted })
    await setWei(second.address, 0n)
    await shop.restart()
    for (let turn = 0; turn < 2; turn++) {
      expect(await offered()).toBe(first.address)
      shop.advance(61_000)
    }
    shop.advance(-122_000)
    const response = await shop.pay(credential)
    expect([response.status, response.headers.has('retry-after')]).toEqual([503, true])
    expect(shop.upstream.requests).toEqual([])
    await setWei(second.address, funded)
    await shop.restart()
    shop.upstream.script = answering(usage(7, 20))
    expect((await shop.pay(credential)).status).toBe(200)
  })

  test('a relayer without money settles a written charge once it has money', async () => {
    await unsettled(second.address, true)
    await setWei(second.address, 0n)
    await shop.restart()
    tap().intercept = undefined
    await shop.restart()
    expect(shop.authorization()).toMatchObject({ state: 'metered', failed_at: null })
    await setWei(second.address, funded)
    await shop.restart()
    await shop.settles()
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })
})

describe('a relayer whose key is removed', () => {
  for (const isStream of [true, false])
    test(`charges of a removed relayer key are logged and ended: ${isStream ? 'a stream' : 'a whole answer'}`, async () => {
      const credential = await unsettled(second.address, isStream)
      const { id } = shop.authorization()
      await restartWith(first)
      tap().intercept = undefined
      await shop.restart()
      try {
        const told = shop.events('charge-without-relayer')
        expect(told).toContainEqual(
          expect.objectContaining({ payment: id, relayer: second.address }),
        )
        expect(shop.authorization().state).toBe('metered')
        const again = await shop.pay(credential)
        expect(again.status).toBe(isStream ? 402 : 503)
        const over = Number(shop.authorization().valid_before) + 1
        await shop.chain().rpc('evm_setNextBlockTimestamp', [over])
        await mine(shop.chain())
        const ahead = over * 1000 + 1000 - shop.now()
        shop.advance(ahead)
        await shop.restart()
        expect(shop.authorization()).toMatchObject({ id, state: 'failed' })
        expect(shop.events('charge-lost')).toHaveLength(1)
        expect((await shop.pay(credential)).status).toBe(402)
        expect(await shop.tokensOf(payer.address)).toBe(10_000_000n)
        expect(shop.upstream.requests).toHaveLength(1)
      } finally {
        // The clock stays: that of the chain cannot go back.
        await restartWith(first, second)
      }
    })
})

describe('a spent gas budget', () => {
  test('a spent gas budget keeps written charges until there is one again, and bans no payer', async () => {
    const replies: Reply[] = []
    shop.upstream.script = (_, reply) => {
      replies.push(reply)
      reply.head(200, events)
      reply.chunk(event('{"n":1}'))
    }
    const spent = () => {
      const [row] = shop.rows(
        `SELECT wei FROM gas_spent WHERE network = '${base}' AND product = 'gateway'`,
      )
      return BigInt(String(row?.wei ?? 0))
    }
    const wei = spent() + 1n
    const networks = shop.config.networks.map((network) => ({
      ...network,
      gasPerDayWei: { ...network.gasPerDayWei, gateway: wei },
    }))
    const { config } = shop
    await shop.restart({ ...config, networks })
    const deadline = later()
    const streams = [
      await shop.buy({ signer: payer, deadline }),
      await shop.buy({ signer: payer, deadline }),
    ]
    const third = await shop.sign({ signer: payer, deadline })
    for (const [index, stream] of streams.entries()) {
      replies[index]?.chunk(event(usage(7, 20)))
      replies[index]?.end()
      await stream.text()
      await until('it is charged', () => shop.events('charge').length === index + 1)
      // The first spends the budget, which counts once its receipt is recorded.
      if (index === 0) await until('its gas is recorded', () => spent() >= wei)
    }
    expect((await shop.pay(third)).status).toBe(503)
    expect(shop.authorization()).toMatchObject({ state: 'metered', failed_at: null })
    expect(await paid()).toBe(BigInt(costOf(7, 20)))
    await shop.restart(config)
    await shop.settles()
    expect(await paid()).toBe(2n * BigInt(costOf(7, 20)))
  })
})

describe('a chain without the proxy', () => {
  test('a chain without the proxy has no offer of upto, and nothing is forwarded', async () => {
    const code = await shop.chain().rpc('eth_getCode', [proxyAddress, 'latest'])
    const deadline = later()
    const credential = await shop.sign({ signer: payer, deadline })
    await shop.chain().rpc('anvil_setCode', [proxyAddress, '0x'])
    try {
      // Before the network was checked again.
      expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_proxy_not_deployed'])
      await shop.restart()
      expect(await offered()).toBeUndefined()
      expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_proxy_not_deployed'])
      expect(shop.upstream.requests).toEqual([])
    } finally {
      await shop.chain().rpc('anvil_setCode', [proxyAddress, code])
      await shop.restart()
    }
  })

  test('attack: the answer is withheld when the proxy is removed before the settlement', async () => {
    const code = await shop.chain().rpc('eth_getCode', [proxyAddress, 'latest'])
    const deadline = later()
    shop.upstream.script = async (_, reply) => {
      await shop.chain().rpc('anvil_setCode', [proxyAddress, '0x'])
      reply.send(200, usage(7, 20), json)
    }
    try {
      const response = await shop.buy({ signer: payer, deadline })
      expect(response.status).not.toBe(200)
      expect(await response.text()).not.toContain('completion_tokens')
      expect(await shop.tokensOf(payer.address)).toBe(10_000_000n)
    } finally {
      await shop.chain().rpc('anvil_setCode', [proxyAddress, code])
    }
  })
})

describe('a reorganisation', () => {
  test('a reorganisation after the settlement sends the same bytes again, and delivers nothing again', async () => {
    shop.upstream.script = answering(usage(7, 20))
    const deadline = later()
    const credential = await shop.sign({ signer: payer, deadline })
    expect((await shop.pay(credential)).status).toBe(200)
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    const { transaction_hash: hash } = shop.payment()
    const held = 10_000_000n - BigInt(costOf(7, 20))
    expect(await shop.tokensOf(payer.address)).toBe(held)
    await shop.chain().rpc('anvil_reorg', [1, []])
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n)
    await shop.restart()
    await until('it is settled again', async () => (await shop.tokensOf(payer.address)) === held)
    await shop.settles()
    expect(shop.payment()).toMatchObject({ transaction_hash: hash, delivery: 'delivered' })
    expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
    expect(shop.upstream.requests).toHaveLength(1)
  })
})
