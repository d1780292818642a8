import { expect, test } from 'bun:test'
import {
  type SignedOffer,
  type SignedReceipt,
  verifyOfferSignatureEIP712,
  verifyReceiptSignatureEIP712,
} from '@x402/extensions/offer-receipt'
import { Receipt as MppxReceipt } from 'mppx'
import * as Crypto from '../../src/protocol/Crypto'
import * as Offer from '../../src/protocol/Offer'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import * as X402 from '../../src/protocol/X402'
import { chainB, offer, payer } from './networks'

const key = Crypto.bytes('55'.repeat(32))
const issuer = Crypto.addressOf(key)
const transaction = `0x${'ab'.repeat(32)}` as const
const receipt = Receipt.sign(
  {
    network: 'eip155:4663',
    resourceUrl: 'https://gw.example/m/weather/forecast?latitude=1',
    payer,
    issuedAt: 1893456000,
    transaction,
  },
  key,
)
const response = Receipt.x402({
  success: true,
  transaction,
  network: 'eip155:4663',
  payer,
  receipt,
})

test('the stock verifier recovers our receipt key', async () => {
  const { signer } = await verifyReceiptSignatureEIP712(
    receipt as SignedReceipt & { format: 'eip712' },
  )
  expect(signer).toBe(issuer)
  expect(Receipt.verify(receipt)).toBe(issuer)
})

test('the stock verifier recovers the signer of our offers', async () => {
  const [requirements] = X402.accepts([offer(chainB)])
  if (requirements === undefined) throw new Error('no requirements')
  const signed = Offer.sign(
    { resourceUrl: 'https://gw.example/x', requirements, validUntil: 5 },
    key,
  )
  const { signer } = await verifyOfferSignatureEIP712(signed as SignedOffer & { format: 'eip712' })
  expect(signer).toBe(issuer)
  expect(Offer.verify(signed)).toBe(issuer)
  expect(signed.payload).toMatchObject({
    amount: '10000',
    asset: chainB.asset.address,
    validUntil: 5,
  })
  const tampered = { ...signed, payload: { ...signed.payload, amount: '1' } }
  expect(Offer.verify(tampered)).not.toBe(issuer)
})

test('mppx reads the MPP receipt', () => {
  const value = Receipt.mpp(receipt, { issuer, challengeId: 'id1' })
  expect(value).toMatch(/^[A-Za-z0-9_-]+$/)
  expect(MppxReceipt.deserialize(value) as unknown).toEqual({
    status: 'success',
    method: 'evm',
    timestamp: '2030-01-01T00:00:00Z',
    reference: transaction,
    challengeId: 'id1',
    chainId: 4663,
    network: 'eip155:4663',
    payer,
    resource: receipt.payload.resourceUrl,
    issuer,
    signature: receipt.signature,
  })
})

test('every form that a buyer keeps parses to the same signed receipt', () => {
  const mpp = Receipt.mpp(receipt, { issuer })
  const decode = (value: string) => Buffer.from(value, 'base64').toString()
  for (const text of [
    mpp,
    ` ${decode(mpp)}\n`,
    response,
    decode(response),
    JSON.stringify(receipt),
  ]) {
    const parsed = Receipt.parse(text)
    if (isFault(parsed)) throw new Error(parsed.detail)
    expect(parsed).toEqual(receipt)
    expect(Receipt.verify(parsed)).toBe(issuer)
  }
})

test('error: a changed receipt has another signer', () => {
  for (const change of [
    { network: 'eip155:8453' },
    { payer: issuer },
    { transaction: `0x${'ac'.repeat(32)}` },
    { issuedAt: 1893456001 },
    { resourceUrl: 'https://gw.example/' },
  ]) {
    expect(Receipt.verify({ ...receipt, payload: { ...receipt.payload, ...change } })).not.toBe(
      issuer,
    )
  }
})

test('the URL of a receipt has the purchase, and nothing in another form', () => {
  const bought = { request: 'ab'.repeat(32), amount: '5000', order: `ord_${'1'.repeat(32)}` }
  const at = (resourceUrl: string) =>
    Receipt.purchaseOf({ payload: { ...receipt.payload, resourceUrl } })
  const none = { request: undefined, amount: undefined, order: undefined }
  const url = 'https://gw.example/x?a=1&amount=7'
  expect(at(Receipt.urlOf(url, bought))).toEqual(bought)
  expect(at(Receipt.urlOf(url, { ...bought, order: undefined }))).toEqual({
    ...bought,
    order: undefined,
  })
  expect(at(url)).toEqual(none)
  expect(at(`${url}#request=AB&amount=-1&order=ord_1`)).toEqual(none)
  expect(at(`${url}#amount=1e3`)).toEqual(none)
})

test('error: a text that is not a receipt is a fault', () => {
  const json = JSON.stringify(receipt)
  for (const text of [
    ...[
      '',
      'x',
      '{}',
      '[]',
      '{"status":"success"}',
      '{"extensions":{"offer-receipt":{"info":{}}}}',
    ],
    json.replace('eip712', 'jws'),
    json.replace('"version":1', '"version":2'),
    json.replace('"issuedAt":1893456000', '"issuedAt":-1'),
    json.replace('"issuedAt":1893456000', '"issuedAt":"1e3"'),
    json.replace('"issuedAt":1893456000', '"issuedAt":8640000000001'),
    JSON.stringify({
      ...{ status: 'success', network: 'eip155:1', resource: 'x', payer: 'x', reference: 'x' },
      ...{ timestamp: '2030-01-01T00:00:00.5Z', signature: '0x11' },
    }),
  ]) {
    expect(Receipt.parse(text)).toMatchObject({ code: 'malformed-receipt' })
  }
})
