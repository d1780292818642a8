import { expect, test } from 'bun:test'
import {
  decodePaymentRequiredHeader,
  decodePaymentResponseHeader,
  decodePaymentSignatureHeader,
} from '@x402/core/http'
import { PaymentRequiredV2Schema } from '@x402/core/schemas'
import { appendPaymentIdentifierToExtensions } from '@x402/extensions/payment-identifier'
import { Mppx } from 'mppx/client'
import { charge } from 'mppx/evm/client'
import { privateKeyToAccount } from 'viem/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { encodeJson } from '../../src/protocol/Header'
import * as Json from '../../src/protocol/Json'
import * as Offer from '../../src/protocol/Offer'
import * as Permit from '../../src/protocol/Permit'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import mppxCapture from './fixtures/mppx-x402-8453-eip3009.json'
import eip2612 from './fixtures/x402-4663-permit2-eip2612-ext-rpc.json'
import erc20 from './fixtures/x402-4663-permit2-erc20approval-ext-rpc.json'
import permit2 from './fixtures/x402-4663-permit2-plain.json'
import eip3009 from './fixtures/x402-8453-eip3009.json'
import { chainA, chainB, offer, otherChain, payer, payTo } from './networks'

type Members = { [member: string]: unknown }

const resource = {
  url: 'https://gw.example/m/weather/forecast',
  description: 'w',
  mimeType: 'application/json',
}
const key = Crypto.bytes('33'.repeat(32))

/** The captures were made without our `spender` and `paymentFlow`, on assets of a local chain. */
const captured = (value: string) => {
  const parsed = X402.parsePayload(value)
  if (isFault(parsed)) throw new Error(parsed.detail)
  return parsed
}
const requirements = (paid: ReturnType<typeof offer>, method: string) => {
  const found = X402.accepts([paid]).find(({ extra }) => extra.assetTransferMethod === method)
  if (found === undefined) throw new Error(`no ${method}`)
  return found
}
const base = (change: (payload: Members) => unknown = () => undefined) => {
  const copy = structuredClone(permit2.payload) as Members
  return encodeJson((change(copy) ?? copy) as object)
}
const authorized = (change: (payload: Members) => unknown = () => undefined) => {
  const copy = structuredClone(eip3009.payload) as Members
  copy.accepted = requirements(offer(chainA), 'eip3009')
  return encodeJson((change(copy) ?? copy) as object)
}
const codeOf = (result: unknown) =>
  isFault(result as object) ? (result as { code: string }).code : 'none'
const matchCode = (value: string, offers = [offer(chainB), offer(chainA)]) =>
  codeOf(X402.matchOffer(captured(value), offers))
const captureAsset = Json.read(
  { a: permit2.payload.payload.permit2Authorization.permitted.token },
  'a',
  'address',
)
const captureChain = { ...chainB, asset: { ...chainB.asset, address: captureAsset } }

test('captured payloads parse and recover to their payer', () => {
  const headers = [
    ...[permit2, eip2612, erc20, eip3009].map((each) => each.retryHeaders['payment-signature']),
    mppxCapture.retryRequest.headers['payment-signature'],
  ]
  for (const header of headers) {
    const parsed = { ...captured(header), accepted: undefined }
    const offers = [offer(chainA), offer(captureChain)]
    const matches = X402.matchOffer(parsed, offers)
    if (isFault(matches)) throw new Error(matches.detail)
    const signers = matches.map(({ transfer, offer: { network } }) =>
      Crypto.recover(Transfer.digest(transfer, network.asset), transfer.signature),
    )
    expect(signers).toContain(payer)
  }
})

test('the requirements that stock clients echo equal our own', () => {
  for (const [network, method] of [
    [chainA, 'eip3009'],
    [chainB, 'permit2'],
  ] as const) {
    expect(requirements(offer(network), method)).toEqual({
      scheme: 'exact',
      network: network.id,
      amount: '10000',
      asset: network.asset.address,
      payTo,
      maxTimeoutSeconds: 300,
      extra: {
        assetTransferMethod: method,
        ...(method === 'permit2' ? { spender: Permit.proxyAddress } : {}),
        ...network.asset.eip712,
        paymentFlow: 'upfront',
      },
    })
  }
  expect(Object.keys(requirements(offer(chainA), 'eip3009'))).toEqual([
    ...['scheme', 'network', 'amount', 'asset', 'payTo', 'maxTimeoutSeconds', 'extra'],
  ])
})

const salt = 'abcdefghijklmno'

function fullExtensions(accepts: readonly X402.Requirements[]) {
  const offers = accepts.map((requirements) =>
    Offer.sign({ resourceUrl: resource.url, requirements, validUntil: 1900000000 }, key),
  )
  const more = ['bazaar', 'eip2612GasSponsoring', 'erc20ApprovalGasSponsoring'].map((name) => ({
    name,
    info: { description: 'x'.repeat(100) },
    schema: { type: 'object' },
  }))
  return X402.extensions({ offers, method: 'GET', salt, more })
}

test('@x402/core reads our header, every extension has info and schema', () => {
  const accepts = X402.accepts([offer(chainB), offer(chainA)])
  expect(accepts.map(({ network, extra }) => `${network} ${extra.assetTransferMethod}`)).toEqual([
    'eip155:4663 permit2',
    'eip155:4663 eip3009',
    'eip155:8453 eip3009',
  ])
  const full = X402.paymentRequired({
    error: 'Payment required',
    resource,
    accepts,
    extensions: fullExtensions(accepts),
  })
  const header = encodeJson(full)
  expect(header).toMatch(/^[A-Za-z0-9+/]+={0,2}$/)
  const decoded = decodePaymentRequiredHeader(header)
  expect(decoded as unknown).toEqual(JSON.parse(JSON.stringify(full)))
  expect(PaymentRequiredV2Schema.safeParse(decoded).success).toBe(true)
  for (const extension of Object.values(full.extensions)) {
    expect(extension.info).toBeObject()
    expect(extension.schema).toBeObject()
  }
})

test('the payment-identifier declaration works with the stock client helper', () => {
  const extensions = JSON.parse(
    JSON.stringify(X402.extensions({ offers: [], method: 'GET', salt })),
  )
  appendPaymentIdentifierToExtensions(extensions, 'pay_7d5d747be160e280504c099d984bcfe0')
  const parsed = captured(base((p) => void Object.assign(p, { extensions })))
  expect(parsed.identifier).toBe('pay_7d5d747be160e280504c099d984bcfe0')
  for (const id of ['short', 'x'.repeat(129), 'has space in its text', 5]) {
    extensions['payment-identifier'].info.id = id
    const value = base((p) => void Object.assign(p, { extensions }))
    expect(codeOf(X402.parsePayload(value))).toBe('invalid_payload')
  }
})

test('both alphabets are read, and what @x402/core reads too', () => {
  const value = permit2.retryHeaders['payment-signature']
  expect(decodePaymentSignatureHeader(value) as unknown).toEqual(permit2.payload)
  const url = value.replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
  expect(captured(url)).toEqual(captured(value))
})

test('the payload of specification 2.3 needs no more than it shows', () => {
  const authorization = permit2.payload.payload.permit2Authorization
  const { spender: _, ...shown } = authorization
  const value = encodeJson({
    x402Version: 2,
    payload: {
      permit2Authorization: {
        ...shown,
        deadline: Number(authorization.deadline),
        witness: { to: authorization.witness.to },
      },
      signature: permit2.payload.payload.signature,
    },
  })
  const matches = X402.matchOffer(captured(value), [offer(chainA), offer(captureChain)])
  if (isFault(matches)) throw new Error(matches.detail)
  const [match] = matches
  expect(matches).toHaveLength(1)
  if (match === undefined) throw new Error('no match')
  const digest = Transfer.digest(match.transfer, captureChain.asset)
  expect(Crypto.recover(digest, match.transfer.signature)).toBe(payer)
})

test('without accepted EIP-3009 matches every offer of its payee and amount', () => {
  const value = authorized(({ accepted: _, ...rest }) => rest)
  const offers = [offer(chainB), offer(chainA), offer(otherChain(chainA, 84532)), offer(chainA, 5n)]
  const matches = X402.matchOffer(captured(value), offers)
  if (isFault(matches)) throw new Error(matches.detail)
  expect(matches.map((match) => match.transfer.chainId)).toEqual([4663, 8453, 84532])
  const signed = matches.filter(
    ({ transfer, offer: { network } }) =>
      Crypto.recover(Transfer.digest(transfer, network.asset), transfer.signature) === payer,
  )
  expect(signed.map((match) => match.offer.network.id)).toEqual(['eip155:8453'])
})

test('accepted equal to ours matches, whatever the case of its addresses', () => {
  expect(matchCode(authorized())).toBe('none')
  const value = authorized((p) => {
    const accepted = p.accepted as Members
    p.accepted = {
      ...accepted,
      asset: String(accepted.asset).toLowerCase(),
      payTo: payTo.toLowerCase(),
      amount: 10000,
      note: null,
    }
  })
  expect(matchCode(value)).toBe('none')
})

test('error: tampered accepted is refused', () => {
  const accepted = requirements(offer(chainA), 'eip3009')
  const cases: [Members, string][] = [
    [{ scheme: 'upto' }, 'unsupported_scheme'],
    [{ scheme: 'Exact' }, 'unsupported_scheme'],
    [{ network: 'eip155:1' }, 'invalid_network'],
    [{ network: 8453 }, 'invalid_network'],
    [{ network: 'eip155:4663' }, 'invalid_payment_requirements'],
    [{ amount: '9999' }, 'invalid_payment_requirements'],
    [{ amount: '0x2710' }, 'invalid_payment_requirements'],
    [{ amount: '010000' }, 'invalid_payment_requirements'],
    [{ asset: chainB.asset.address }, 'invalid_payment_requirements'],
    [{ payTo: payer }, 'invalid_payment_requirements'],
    [{ maxTimeoutSeconds: 301 }, 'invalid_payment_requirements'],
    [{ maxTimeoutSeconds: '300' }, 'invalid_payment_requirements'],
    [{ outputSchema: {} }, 'invalid_payment_requirements'],
    [{ extra: undefined }, 'invalid_payment_requirements'],
    [{ extra: { ...accepted.extra, name: 'usd coin' } }, 'invalid_payment_requirements'],
    [{ extra: { ...accepted.extra, more: 1 } }, 'invalid_payment_requirements'],
    [
      { extra: { ...accepted.extra, paymentFlow: 'authorization' } },
      'invalid_payment_requirements',
    ],
    [
      { extra: { ...accepted.extra, assetTransferMethod: 'permit2' } },
      'invalid_payment_requirements',
    ],
  ]
  for (const [change, code] of cases) {
    const value = authorized((p) => void Object.assign(p, { accepted: { ...accepted, ...change } }))
    expect([change, matchCode(value)]).toEqual([change, code])
  }
})

test('error: signed fields that differ from the offer have the reason codes of the scheme', () => {
  const offers = [offer(captureChain)]
  const permit = (change: Members) =>
    base((p) => {
      delete p.accepted
      const payload = p.payload as { permit2Authorization: Members }
      Object.assign(payload.permit2Authorization, change)
    })
  expect(matchCode(permit({}), offers)).toBe('none')
  expect(matchCode(permit({ spender: payer }), offers)).toBe('invalid_permit2_spender')
  expect(matchCode(permit({ witness: { to: payer, validAfter: '0' } }), offers)).toBe(
    'invalid_permit2_recipient_mismatch',
  )
  expect(matchCode(permit({ permitted: { token: captureAsset, amount: '9999' } }), offers)).toBe(
    'permit2_amount_mismatch',
  )
  expect(matchCode(permit({ permitted: { token: payer, amount: '10000' } }), offers)).toBe(
    'permit2_token_mismatch',
  )
  const authorization = (change: Members) =>
    authorized(
      (p) => void Object.assign((p.payload as { authorization: Members }).authorization, change),
    )
  expect(matchCode(authorization({ to: payer }))).toBe('invalid_exact_evm_recipient_mismatch')
  expect(matchCode(authorization({ value: '10001' }))).toBe(
    'invalid_exact_evm_payload_authorization_value_mismatch',
  )
  // A permit2 payload cannot pay an offer that lists EIP-3009 only.
  expect(matchCode(permit({}), [offer(chainA)])).toBe('invalid_permit2_recipient_mismatch')
})

test('error: malformed payloads are invalid_payload, other versions say so', () => {
  const inner = (change: Members) =>
    base(
      (p) =>
        void Object.assign(
          (p.payload as { permit2Authorization: Members }).permit2Authorization,
          change,
        ),
    )
  const raw = (text: string) => Buffer.from(text).toString('base64')
  const text = JSON.stringify(permit2.payload)
  for (const value of [
    ...['', '!', 'A', 'null', raw('null'), raw('[]'), raw('{'), raw('"x"'), 'A'.repeat(20000)],
    raw(text.replace('"x402Version":2', '"x402Version":2,"x402Version":2')),
    raw(text.replace('"signature":', '"signature":"0x11","signature":')),
    raw(text.replace('"payload":{', '"payload":{"__proto__":{},')),
    base((p) => void delete p.payload),
    base((p) => void Object.assign(p, { payload: [] })),
    base((p) => void Object.assign(p, { accepted: 'x' })),
    base((p) => void Object.assign(p, { extensions: [] })),
    base(
      (p) =>
        void Object.assign(p.payload as Members, {
          authorization: eip3009.payload.payload.authorization,
        }),
    ),
    base((p) => void delete (p.payload as Members).permit2Authorization),
    base((p) => void Object.assign(p.payload as Members, { signature: '0x1' })),
    base((p) => void Object.assign(p.payload as Members, { signature: 5 })),
    ...['0x1', '-1', '1e4', '01', '', (2n ** 256n).toString(), 1.5, -1, 2 ** 53, true, {}].map(
      (nonce) => inner({ nonce }),
    ),
    ...['0x1', null, 1.5].map((deadline) => inner({ deadline })),
    inner({ from: '0x1' }),
    inner({ from: undefined }),
    inner({ permitted: [] }),
    inner({ witness: undefined }),
    inner({ witness: { to: payTo, validAfter: 'x' } }),
  ]) {
    expect([value.slice(0, 60), codeOf(X402.parsePayload(value))]).toEqual([
      value.slice(0, 60),
      'invalid_payload',
    ])
  }
  for (const x402Version of [1, '2', 3, undefined]) {
    const value = base((p) => void Object.assign(p, { x402Version }))
    expect(codeOf(X402.parsePayload(value))).toBe('invalid_x402_version')
  }
})

async function mppxPays(required: X402.PaymentRequired): Promise<string> {
  let sent = ''
  const fetch = async (input: string | URL | Request, init?: RequestInit) => {
    const request = input instanceof Request ? input : new Request(String(input), init)
    const header = request.headers.get('payment-signature')
    if (header !== null) {
      sent = header
      return new Response('paid')
    }
    const value = encodeJson(required)
    return new Response('{}', { status: 402, headers: { 'payment-required': value } })
  }
  const account = privateKeyToAccount(`0x${'44'.repeat(32)}`)
  const client = Mppx.create({
    fetch: fetch as typeof globalThis.fetch,
    methods: [charge({ account, maxAtomicAmount: '10000' })],
    polyfill: false,
  })
  await client.fetch(resource.url)
  return sent
}

test('mppx binds its nonce to the route', async () => {
  const offers = [offer(chainB), offer(chainA)]
  const accepts = X402.accepts(offers)
  const extensions = X402.extensions({ offers: [], method: 'GET', salt })
  const header = await mppxPays(
    X402.paymentRequired({ error: 'Payment required', resource, accepts, extensions }),
  )
  const parsed = captured(header)
  const matches = X402.matchOffer(parsed, offers)
  if (isFault(matches)) throw new Error(matches.detail)
  expect(matches).toHaveLength(1)
  expect(X402.isRouteBound(parsed, { url: resource.url, method: 'GET' })).toBe(true)
  expect(X402.isRouteBound(parsed, { url: resource.url })).toBe(true)
  expect(X402.isRouteBound(parsed, { url: `${resource.url}/other` })).toBe(false)
  expect(X402.isRouteBound(parsed, { url: resource.url, method: 'POST' })).toBe(false)
  const accepted = { ...parsed.accepted, amount: '1' }
  expect(X402.isRouteBound({ ...parsed, accepted }, { url: resource.url })).toBe(false)
  const unbound = captured(mppxCapture.retryRequest.headers['payment-signature'])
  expect(X402.isRouteBound(unbound, { url: 'http://127.0.0.1:46007/paid' })).toBe(false)
})

test('settlement responses decode with @x402/core', () => {
  const header = Receipt.x402({
    success: false,
    errorReason: 'settlement_pending',
    transaction: '0xab',
    network: 'eip155:8453',
    payer,
    amount: undefined,
  })
  expect(decodePaymentResponseHeader(header) as unknown).toEqual({
    success: false,
    errorReason: 'settlement_pending',
    transaction: '0xab',
    network: 'eip155:8453',
    payer,
  })
})

test('the window of a new payment', () => {
  const now = 1_900_000_000_500
  const at = (validAfter: number, validBefore: number, method: 'eip3009' | 'permit2') =>
    Transfer.checkWindow(
      { method, validAfter: BigInt(validAfter), validBefore: BigInt(validBefore) },
      now,
      Transfer.windowMaxSeconds,
    )?.code
  const seconds = 1_900_000_000
  const prefix = 'invalid_exact_evm_payload_authorization'
  expect(at(0, seconds + 6, 'eip3009')).toBeUndefined()
  expect(at(seconds, seconds + 360, 'permit2')).toBeUndefined()
  expect(at(0, seconds + 5, 'eip3009')).toBe(`${prefix}_valid_before`)
  expect(at(0, seconds + 361, 'eip3009')).toBe(`${prefix}_valid_before`)
  expect(at(seconds + 1, seconds + 100, 'eip3009')).toBe(`${prefix}_valid_after`)
  expect(at(0, seconds + 5, 'permit2')).toBe('permit2_deadline_expired')
  expect(at(0, seconds + 361, 'permit2')).toBe('permit2_deadline_expired')
  expect(at(seconds + 1, seconds + 100, 'permit2')).toBe('permit2_not_yet_valid')
})
