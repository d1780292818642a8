import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { setAutomine } from '../harness/chains'
import {
  type Answer,
  type Body,
  charging,
  type Made,
  makeBody,
  post,
} from '../harness/facilitation'
import { payee, type Shop, startShop } from '../harness/shop'

/** The scheme `upto`: the payer signs a ceiling, and the resource server settles what it charges. */

const [first, second] = [account(0), account(6)]
const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'
const networks: readonly Id[] = [robinhood, base, 'eip155:84532']
const used = 'permit2_invalid_nonce'
const token = parseAbi([
  'function mint(address to, uint256 value)',
  'function transfer(address to, uint256 value) returns (bool)',
  'function approve(address spender, uint256 value) returns (bool)',
])

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    env: { RELAYER_KEYS: `${first.privateKey},${second.privateKey}` },
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        verifyPerMinute: 1e6,
        settlePerMinute: 1e6,
        uptoWithoutKeys: true,
      },
    }),
  })
})
afterAll(() => shop?.stop())

function networkOf(id: Id) {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}
function chainOf(id: Id) {
  const chain = shop.chains[id]
  if (chain === undefined) throw new Error(`no ${id}`)
  return chain
}
/** Up to 0.005 of account 1. */
const make = (made: Made = {}, id = base) => makeBody(networkOf(id), { scheme: 'upto', ...made })
const verify = (body: unknown) => post(`${shop.url}/verify`, body)
const settle = (body: unknown) => post(`${shop.url}/settle`, body)
const codeOf = ({ json }: Answer) => json.invalidReason ?? json.errorReason
const successes = (answers: readonly Answer[]) =>
  answers.filter(({ json }) => json.success === true).length

/** An `exact` payment by the same Permit2 nonce. */
function exactOf(body: Body, made: Made = {}, id = base) {
  const { nonce, deadline } = body.paymentPayload.payload.permit2Authorization as {
    nonce: string
    deadline: string
  }
  const terms = { method: 'permit2' as const, validBefore: BigInt(deadline) }
  const word: Hex = `0x${BigInt(nonce).toString(16).padStart(64, '0')}`
  return makeBody(networkOf(id), { ...terms, nonce: word, ...made })
}

/** Every further use of the authorization is refused as a used nonce, and writes nothing. */
async function expectUsed(body: Body, id = base) {
  const [rows, before] = [shop.counts(), await shop.balance(id, payee)]
  const exact = await exactOf(body, {}, id)
  for (const charge of [0, 1, 3000, 5000]) {
    expect([charge, codeOf(await settle(charging(body, charge)))]).toEqual([charge, used])
  }
  expect(codeOf(await verify(body))).toBe(used)
  expect(codeOf(await verify(exact))).toBe(used)
  expect(codeOf(await settle(exact))).toBe(used)
  expect([shop.counts(), await shop.balance(id, payee)]).toEqual([rows, before])
}

describe('supported', () => {
  const kinds = async () => {
    const response = await fetch(`${shop.url}/supported`)
    const json = (await response.json()) as { kinds: Record<string, unknown>[]; signers: unknown }
    expect(json.signers).toEqual({ 'eip155:*': [first.address, second.address] })
    return json.kinds
  }
  const named = (facilitatorAddress: string) =>
    networks.map((network) => ({
      x402Version: 2,
      scheme: 'upto',
      network,
      extra: { facilitatorAddress },
    }))

  test('upto is listed for every network beside exact, and the relayers take turns', async () => {
    const exact = networks.map((network) => ({ x402Version: 2, scheme: 'exact', network }))
    const turns = [await kinds(), await kinds(), await kinds()]
    const [a, b] = [named(first.address), named(second.address)]
    const upto = turns.map((each) => each.slice(3, 6))
    const orders = [
      [a, b, a],
      [b, a, b],
    ]
    expect(orders.map((each) => JSON.stringify(each))).toContain(JSON.stringify(upto))
    for (const each of turns) expect(each.slice(0, 3)).toEqual(exact)
  })

  test('a network whose proxy has no code has no upto, and refuses it', async () => {
    const chain = chainOf('eip155:84532')
    const body = await make({}, 'eip155:84532')
    const proxy = (body.paymentPayload.payload.permit2Authorization as { spender: Hex }).spender
    const code = await chain.rpc('eth_getCode', [proxy, 'latest'])
    await chain.rpc('anvil_setCode', [proxy, '0x'])
    try {
      await shop.restart()
      const listed = (await kinds()).filter(({ scheme }) => scheme === 'upto')
      expect(listed.map(({ network }) => network)).toEqual([robinhood, base])
      const rows = shop.counts()
      for (const answer of [await verify(body), await settle(charging(body, 1))]) {
        expect([answer.status, codeOf(answer)]).toEqual([200, 'permit2_proxy_not_deployed'])
      }
      expect(codeOf(await settle(charging(body, 0)))).toBe('permit2_proxy_not_deployed')
      expect(shop.counts()).toEqual(rows)
    } finally {
      await chain.rpc('anvil_setCode', [proxy, code])
      await shop.restart()
    }
    expect((await settle(body)).json).toMatchObject({ success: true })
  })

  test('a relayer without gas is not named, and its authorizations wait for it', async () => {
    const chain = chainOf(base)
    const rich = await chain.rpc('eth_getBalance', [second.address, 'latest'])
    const body = await make({ facilitator: second.address })
    await chain.rpc('anvil_setBalance', [second.address, '0x0'])
    try {
      await shop.restart()
      for (let turn = 0; turn < 3; turn++) {
        const kind = (await kinds()).find((each) => each.scheme === 'upto' && each.network === base)
        expect(kind?.extra).toEqual({ facilitatorAddress: first.address })
      }
      const verified = await verify(body)
      expect([verified.status, verified.json.code]).toEqual([503, 'not-ready'])
      expect(verified.json.detail).toBe(
        'The relayer that this authorization names cannot send now: sign for another of /supported.',
      )
      const settled = await settle(charging(body, 9))
      expect([settled.status, settled.json.code]).toEqual([503, 'not-ready'])
    } finally {
      await chain.rpc('anvil_setBalance', [second.address, rich])
      await shop.restart()
    }
    expect((await settle(charging(body, 9))).json).toMatchObject({ success: true, amount: '9' })
  })
})

describe('verify', () => {
  for (const id of networks) {
    test(`a ceiling on ${id} is valid, in two calls, and writes nothing`, async () => {
      const body = await make({}, id)
      const [rows, calls] = [shop.counts(), shop.calls()]
      const { status, json } = await verify(body)
      expect([status, json]).toEqual([200, { isValid: true, payer: account(1).address }])
      expect(shop.calls() - calls).toBe(2)
      expect(shop.counts()).toEqual(rows)
    })
  }

  test('a nonce of 32 bytes in hex is the same money as in digits', async () => {
    const body = await make()
    const hex = structuredClone(body)
    const signed = hex.paymentPayload.payload.permit2Authorization as { nonce: string }
    signed.nonce = `0x${BigInt(signed.nonce).toString(16).padStart(64, '0').toUpperCase()}`
    expect((await verify(hex)).json).toMatchObject({ isValid: true })
    expect((await settle(charging(hex, 8))).json).toMatchObject({ success: true })
    await expectUsed(body)
  })
})

describe('settle', () => {
  for (const id of networks) {
    for (const relayer of [first, second]) {
      test(`${relayer.address} on ${id} settles the charge below the ceiling, once`, async () => {
        const body = await make({ facilitator: relayer.address }, id)
        const before = await shop.balance(id, payee)
        const { status, json } = await settle(charging(body, 1234))
        expect(status).toBe(200)
        expect(json).toEqual({
          success: true,
          payer: account(1).address,
          transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
          network: id,
          amount: '1234',
        })
        expect((await shop.balance(id, payee)) - before).toBe(1_234n)
        const sent = (await chainOf(id).rpc('eth_getTransactionByHash', [json.transaction])) as {
          from: Hex
        }
        expect(sent.from).toBe(relayer.address.toLowerCase() as Hex)
        await expectUsed(body, id)
      })
    }
  }

  test('the whole ceiling and one unit of it may be charged', async () => {
    const before = await shop.balance(base, payee)
    for (const charge of [5000, 1]) {
      const { json } = await settle(charging(await make(), charge))
      expect(json).toMatchObject({ success: true, amount: String(charge) })
    }
    expect((await shop.balance(base, payee)) - before).toBe(5_001n)
  })

  test('error: a charge above the ceiling is refused, and one within it is settled later', async () => {
    const body = await make()
    const rows = shop.counts()
    for (const charge of [5001n, 2n ** 256n - 1n]) {
      const { status, json } = await settle(charging(body, charge))
      const errorReason = 'invalid_upto_evm_payload_settlement_exceeds_amount'
      expect([status, json.success, json.errorReason]).toEqual([200, false, errorReason])
      expect(json).toMatchObject({ transaction: '', network: base, payer: account(1).address })
    }
    expect(shop.counts()).toEqual(rows)
    expect((await settle(charging(body, 4999))).json).toMatchObject({ amount: '4999' })
  })

  test('of concurrent calls with different charges and schemes exactly one succeeds, also after a restart', async () => {
    const body = await make()
    const before = await shop.balance(base, payee)
    const exact = await exactOf(body, { amountAtomic: 7n })
    const calls = [10, 20, 30, 10, 20, 30].map((charge) => settle(charging(body, charge)))
    const answers = await Promise.all([...calls, settle(exact), settle(exact)])
    expect(answers.map(({ status }) => status)).toEqual(new Array(8).fill(200))
    expect(successes(answers)).toBe(1)
    const charged = answers.find(({ json }) => json.success === true)?.json.amount
    expect((await shop.balance(base, payee)) - before).toBe(BigInt(String(charged)))
    await shop.restart()
    await expectUsed(body)
  })

  test('a pending charge succeeds for the same call only, and is valid meanwhile', async () => {
    const body = await make({ requirements: { maxTimeoutSeconds: 2 } })
    const chain = chainOf(base)
    const before = await shop.balance(base, payee)
    await setAutomine(chain, false)
    let pending: Answer
    try {
      pending = await settle(charging(body, 700))
      const errorReason = 'settlement_pending'
      expect(pending.json).toMatchObject({ success: false, status: 'pending', errorReason })
      // A server that verifies before it settles must not ask its buyer for a second payment.
      expect((await verify(body)).json).toMatchObject({ isValid: true })
      for (const charge of [0, 699, 701, 5000]) {
        expect(codeOf(await settle(charging(body, charge)))).toBe(used)
      }
      const other = structuredClone(body)
      other.paymentRequirements.extra.more = true
      expect(codeOf(await verify(other))).toBe(used)
      const resigned = structuredClone(charging(body, 700))
      resigned.paymentPayload.resource = { url: 'https://shop.example.com/other' }
      expect(codeOf(await settle(resigned))).toBe(used)
    } finally {
      const restarting = shop.restart()
      await setAutomine(chain, true)
      await chain.rpc('anvil_mine', ['0x1'])
      await restarting
    }
    body.paymentRequirements.maxTimeoutSeconds = 30
    const call = charging(body, 700)
    const answers = await Promise.all([settle(call), settle(call), settle(charging(body, 800))])
    expect(successes(answers)).toBe(1)
    const { transaction } = pending.json
    expect(answers.find(({ json }) => json.success === true)?.json).toMatchObject({ transaction })
    expect((await shop.balance(base, payee)) - before).toBe(700n)
    await expectUsed(body)
  })

  test('a charge that failed on chain may be tried again by the same call only', async () => {
    const payer = privateKeyToAccount(`0x${'54'.repeat(32)}`)
    const [chain, tap, { asset }] = [chainOf(base), shop.taps[base], networkOf(base)]
    if (tap === undefined) throw new Error('no tap')
    await chain.rpc('anvil_impersonateAccount', [payer.address])
    await chain.rpc('anvil_setBalance', [payer.address, '0xde0b6b3a7640000'])
    const call = (from: Address, data: Hex) => execute(chain, [{ from, to: asset.address, data }])
    const move = (from: Address, functionName: 'mint' | 'transfer', to: Address) =>
      call(from, encodeFunctionData({ abi: token, functionName, args: [to, 5_000n] }))
    await move(account(9).address, 'mint', payer.address)
    const args = [Permit.permit2Address, 2n ** 256n - 1n] as const
    await call(payer.address, encodeFunctionData({ abi: token, functionName: 'approve', args }))
    const body = await make({ from: payer })
    tap.intercept = async ({ method }) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      tap.intercept = undefined
      await move(payer.address, 'transfer', account(8).address)
      return undefined
    }
    const failed = await settle(charging(body, 4000))
    expect(failed.json).toMatchObject({
      success: false,
      errorReason: 'invalid_upto_evm_transaction_failed',
      transaction: expect.stringMatching(/^0x/),
    })
    expect(codeOf(await verify(body))).toBe('permit2_insufficient_balance')
    await move(account(8).address, 'transfer', payer.address)
    expect((await verify(body)).json).toMatchObject({ isValid: true })
    for (const charge of [0, 3999, 4001]) {
      expect(codeOf(await settle(charging(body, charge)))).toBe(used)
    }
    const again = [await settle(charging(body, 4000)), await settle(charging(body, 4000))]
    expect(successes(again)).toBe(1)
    expect(await shop.balance(base, payer.address)).toBe(1_000n)
  })
})
