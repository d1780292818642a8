import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { ask, payV1, type X402Options } from '../harness/buyer'
import { payee, type Shop, startShop } from '../harness/shop'

/** Credentials of x402 version 1 that no honest client sends. Each is a 4xx, and nothing is written. */

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop?.stop())

const item = () => `${shop.url}/m/shop/item`
const buyer = account(1).local()

type Made = Partial<X402Options> & { members?: Record<string, unknown> }

async function pay(made: Made = {}, url = item()): Promise<string> {
  return payV1((await ask(url)).whole, buyer, made)
}

const decoded = (value: string) => JSON.parse(atob(value)) as Record<string, unknown>
const legacy = (value: string) => ({ 'x-payment': value })

type Answer = { status: number; code: string; reason: string | undefined }

async function send(headers: Record<string, string>, url = item()): Promise<Answer> {
  const response = await fetch(url, { headers })
  const { code, reason } = (await response.json()) as Omit<Answer, 'status'>
  return { status: response.status, code, reason }
}

/** Sends it, and expects a refusal without an effect. */
async function refuse(headers: Record<string, string>, url?: string): Promise<[number, string]> {
  const before = [shop.counts(), shop.upstream.requests.length, await shop.balance(base, payee)]
  const { status, code, reason } = await send(headers, url)
  expect([shop.counts(), shop.upstream.requests.length, await shop.balance(base, payee)]).toEqual(
    before,
  )
  return [status, reason ?? code]
}

const base = 'eip155:8453'

test('a payment of version 1 is answered in its version, beside the receipt of version 2', async () => {
  const value = await pay()
  const response = await fetch(item(), { headers: legacy(value) })
  expect([response.status, await response.text()]).toEqual([200, '{"ok":true}'])
  const { success, transaction, network, payer, extensions } = decoded(
    response.headers.get('payment-response') ?? '',
  )
  expect({ success, network, payer }).toEqual({
    success: true,
    network: base,
    payer: buyer.address,
  })
  expect(extensions).toHaveProperty('offer-receipt')
  expect(decoded(response.headers.get('x-payment-response') ?? '')).toEqual({
    ...{ success: true, transaction, network: 'base', payer: buyer.address },
  })
  expect(await refuse(legacy(value))).toEqual([402, 'invalid_exact_evm_nonce_already_used'])
})

describe('what a signature pays', () => {
  test('attack: a cheap signature buys no dear answer, and one for another payee none', async () => {
    const form = `${shop.url}/m/shop/form?symbol=AAPL`
    const cheap = await pay()
    const mismatch = 'invalid_exact_evm_payload_authorization_value_mismatch'
    expect(await refuse(legacy(cheap), form)).toEqual([402, mismatch])
    for (const value of [4_999n, 5_001n])
      expect(await refuse(legacy(await pay({ value })))).toEqual([402, mismatch])
    const redirected = await pay({ to: account(3).address })
    expect(await refuse(legacy(redirected))).toEqual([402, 'invalid_exact_evm_recipient_mismatch'])
    // It still buys what it was signed for, and then nothing at another route of the same price.
    expect((await fetch(item(), { headers: legacy(cheap) })).status).toBe(200)
    const other = await refuse(legacy(cheap), `${shop.url}/m/shop/other`)
    expect(other).toEqual([402, 'invalid_exact_evm_nonce_already_used'])
  })

  test('attack: a signature of another key, payer or time is refused', async () => {
    const forged = await pay({ from: account(2).address })
    expect(await refuse(legacy(forged))).toEqual([402, 'invalid_exact_evm_signature'])
    const late = 'invalid_exact_evm_payload_authorization_valid_before'
    for (const seconds of [-10n, 3n, 500n]) {
      const validBefore = BigInt(Math.floor(Date.now() / 1000)) + seconds
      expect(await refuse(legacy(await pay({ validBefore })))).toEqual([402, late])
    }
  })

  test('attack: the network that it names is the one that is paid', async () => {
    const onTestnet = await pay({ network: 'eip155:84532', members: { network: 'base-sepolia' } })
    expect(await refuse(legacy(onTestnet), `${shop.url}/m/hasty/item`)).toEqual([
      402,
      'invalid_network',
    ])
    const renamed = await pay({ network: 'eip155:84532' })
    expect(await refuse(legacy(renamed))).toEqual([402, 'invalid_exact_evm_signature'])
    expect((await fetch(item(), { headers: legacy(onTestnet) })).status).toBe(200)
  })
})

describe('the form of a credential', () => {
  test('attack: a network is one of the names of version 1, and no key of an object', async () => {
    const wrong = ['__proto__', 'constructor', 'toString', 'hasOwnProperty', '', 'Base', base]
    for (const network of [...wrong, 'solana', 'robinhood']) {
      const value = await pay({ members: { network } })
      expect([network, await refuse(legacy(value))]).toEqual([network, [400, 'invalid_network']])
    }
    const value = await pay({ members: { network: 'polygon' } })
    expect(await refuse(legacy(value))).toEqual([402, 'invalid_network'])
    for (const network of [8453, null, ['base'], {}, true, undefined]) {
      const refused = await refuse(legacy(await pay({ members: { network } })))
      expect([network, refused]).toEqual([network, [400, 'invalid_payload']])
    }
  })

  test('error: every member that is missing or of another type is named', async () => {
    const good = decoded(await pay()) as {
      payload: { signature: string; authorization: Record<string, unknown> }
    }
    const { authorization, signature } = good.payload
    const payloads: unknown[] = [
      undefined,
      'x',
      [],
      { authorization },
      { signature },
      { signature: '0x', authorization },
      { signature: `0x${'00'.repeat(5000)}`, authorization },
      { signature, authorization: [authorization] },
      { signature, permit2Authorization: authorization },
      ...Object.keys(authorization).flatMap((name) =>
        [undefined, 1.5, -1, '1e3', '0x', {}, 'x'.repeat(100)].map((value) => ({
          signature,
          authorization: { ...authorization, [name]: value },
        })),
      ),
    ]
    for (const payload of payloads) {
      const value = btoa(JSON.stringify({ ...good, payload }))
      const response = await fetch(item(), { headers: legacy(value) })
      const { status, reason, detail } = (await response.json()) as Record<string, unknown>
      expect([payload, status, reason]).toEqual([payload, 400, 'invalid_payload'])
      expect(detail).toMatch(/payload|signature|authorization|from|to|value|valid|nonce/)
    }
    expect(await refuse(legacy(await pay({ members: { scheme: 'upto' } })))).toEqual([
      400,
      'unsupported_scheme',
    ])
    for (const x402Version of [0, 3, '1', null, [1]]) {
      const refused = await refuse(legacy(await pay({ members: { x402Version } })))
      expect([x402Version, refused]).toEqual([x402Version, [400, 'invalid_x402_version']])
    }
  })

  test('error: a value that is huge, or no JSON in base64, is refused', async () => {
    const long = btoa(`{"x402Version":1,"junk":"${'x'.repeat(12_500)}"}`)
    expect(long.length).toBeGreaterThan(16 * 1024)
    const { status } = await fetch(item(), { headers: legacy(long) })
    expect([400, 431]).toContain(status)
    const deep = `${'['.repeat(500)}${']'.repeat(500)}`
    const texts = [
      '{}',
      '{',
      '1',
      `{"x402Version":1,"payload":${deep}}`,
      '{"x402Version":1,"x402Version":2}',
    ]
    for (const value of ['', ' ', '!', 'e30', '%00', ...texts.map((text) => btoa(text))]) {
      const response = await fetch(item(), { headers: legacy(value) })
      const { code } = (await response.json()) as { code: string }
      expect([value, response.status, code]).toEqual([value, 400, 'malformed-payment-signature'])
    }
  })

  test('attack: the header decides the version, and two credentials are none', async () => {
    const [one, two] = [await pay(), await pay()]
    const inV2 = { 'payment-signature': one }
    expect(await refuse(inV2)).toEqual([400, 'invalid_x402_version'])
    for (const headers of [
      { ...inV2, ...legacy(two) },
      legacy(`${one}, ${two}`),
      legacy(`${one},${one}`),
      { ...legacy(one), 'payment-redeem': 'A'.repeat(43) },
      { ...legacy(one), authorization: 'Payment e30' },
    ])
      expect(await refuse(headers)).toEqual([400, 'multiple-credentials'])
    // Some clients send one value under both names.
    expect((await fetch(item(), { headers: { ...inV2, ...legacy(one) } })).status).toBe(200)
  })
})

describe('x402_v1 = false', () => {
  test('nothing is offered, taken or settled in version 1, and version 2 is as it was', async () => {
    const value = await pay()
    const before = await ask(item())
    const off = { ...shop.config, service: { ...shop.config.service, x402V1: false } }
    expect(await shop.app.reload(off)).toEqual([])
    const { body, required } = await ask(item())
    expect(body).not.toHaveProperty('x402')
    expect(body).toMatchObject({ x402Version: 2, accepts: before.whole.accepts })
    const unsalted = ({ extensions, ...rest }: typeof required) => [
      rest,
      { ...extensions, mppx: undefined, 'offer-receipt': undefined },
    ]
    expect(unsalted(required)).toEqual(unsalted(before.required))
    expect(await refuse(legacy(value))).toEqual([402, 'invalid_x402_version'])
    const supported = (await (await fetch(`${shop.url}/supported`)).json()) as {
      kinds: { x402Version: number }[]
    }
    expect(new Set(supported.kinds.map(({ x402Version }) => x402Version))).toEqual(new Set([2]))
    const { accepts } = before.body
    const call = { x402Version: 1, paymentPayload: decoded(value), paymentRequirements: accepts }
    for (const operation of ['verify', 'settle']) {
      const posted = await fetch(`${shop.url}/${operation}`, {
        method: 'POST',
        body: JSON.stringify(call),
      })
      expect([posted.status, ((await posted.json()) as { reason: string }).reason]).toEqual([
        400,
        'invalid_x402_version',
      ])
    }
    expect(await shop.app.reload(shop.config)).toEqual([])
    expect((await fetch(item(), { headers: legacy(value) })).status).toBe(200)
  })
})
