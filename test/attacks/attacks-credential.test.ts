import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import type { Asset } from '../../src/protocol/Asset'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import { type Asked, ask, challengeHash, inSeconds, payMpp, randomNonce } from '../harness/buyer'
import { close, exchange, request } from '../harness/raw'
import { networkOf } from '../harness/settlement'
import {
  effects,
  mppPermit,
  mppUsdc,
  nothing,
  price,
  seller,
  startTarget,
  type Target,
  tampered,
  type Way,
  ways,
  x402Permit,
  x402Usdc,
  x402Usdg,
} from '../harness/target'

let target: Target
beforeAll(async () => {
  target = await startTarget()
})
afterAll(() => target?.stop())
afterEach(() => {
  target.clock.offsetMs = 0
})

const buyer = account(1).local()
const other = account(2).local()
const at = (path: string) => `${target.url}/m/${path}`

/** Sends a credential and expects a refusal of the given status without any effect. */
async function refused(
  headers: Record<string, string>,
  path = 'a/get',
  init?: RequestInit,
): Promise<Response> {
  const { result, ...caused } = await effects(target, () => fetch(at(path), { ...init, headers }))
  const { status } = result
  expect({ ...caused, status, headers }).toEqual({
    ...nothing,
    status: expect.any(Number),
    headers,
  })
  expect([400, 402, 409]).toContain(status)
  return result
}

/** Sends a credential and expects that it buys exactly one answer. */
async function served(
  headers: Record<string, string>,
  path = 'a/get',
  init?: RequestInit,
): Promise<Response> {
  const { result, ...caused } = await effects(target, () => fetch(at(path), { ...init, headers }))
  expect([result.status, caused.forwarded, caused.paidAtomic]).toEqual([200, 1, price])
  await result.text()
  return result
}

describe('time', () => {
  for (const way of ways) {
    test(`attack 17: expired, expiring, valid for too long, ${way.name}`, async () => {
      for (const seconds of [-3600, -1, 0, 3, 362, 3600, 10 ** 9]) {
        const headers = await way.pay(await ask(at('a/get')), buyer, {
          validBefore: inSeconds(seconds),
        })
        const response = await refused(headers)
        expect([seconds, response.status]).toEqual([seconds, 402])
      }
      for (const validBefore of [0n, 2n ** 256n - 1n]) {
        await refused(await way.pay(await ask(at('a/get')), buyer, { validBefore }))
      }
    })
  }

  test('attack 17: an authorization that is not valid yet', async () => {
    for (const way of [x402Usdc, x402Usdg, x402Permit, mppUsdc, mppPermit]) {
      const asked = await ask(at('a/get'))
      const headers = await signedAs(way, asked, { validAfter: inSeconds(60) })
      await refused(tampered(headers, { [pathOf(way, 'validAfter')]: String(inSeconds(60)) }))
      if (way !== mppPermit) await served(await signedAs(way, asked, { validAfter: 0n }))
    }
  })
})

/** Path of a signed member in a credential. */
function pathOf(way: Way, name: 'validAfter' | 'payer'): string {
  const isPermit = way.method === 'permit2'
  const parts = [
    'payload',
    ...(way.protocol === 'mpp' ? [] : [isPermit ? 'permit2Authorization' : 'authorization']),
    ...(name === 'payer' ? ['from'] : isPermit ? ['witness', name] : [name]),
  ]
  return parts.join('.')
}

/** Pays with a signature over other fields or another domain than the credential has. */
async function signedAs(
  way: Way,
  asked: Asked,
  { eip712, ...fields }: Partial<Transfer.Transfer> & { eip712?: Asset['eip712'] },
): Promise<Record<string, string>> {
  const { asset, chainId, id } = networkOf('http://localhost', way.side)
  const challenge = asked.challenges.find(({ request }) => request.currency === asset.address)
  if (challenge === undefined) throw new Error('no challenge')
  const nonce = way.protocol === 'mpp' ? challengeHash(challenge) : randomNonce()
  const expires = BigInt(Math.floor(Date.parse(challenge.raw.expires ?? '') / 1000))
  const transfer = {
    method: way.method,
    network: id,
    chainId,
    asset: asset.address,
    payer: buyer.address,
    payee: seller,
    amountAtomic: price,
    nonce,
    validAfter: 0n,
    validBefore: expires,
    ...fields,
  }
  const digest = Transfer.digest(transfer, { eip712: eip712 ?? asset.eip712 })
  const signature = Crypto.sign(digest, Crypto.bytes(account(1).privateKey))
  return way.pay(asked, buyer, { nonce, validBefore: expires, signature: () => signature })
}

const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
const word = (value: bigint) => value.toString(16).padStart(64, '0')

/** Other texts that a parser may read as the same signature. */
const forms: Readonly<Record<string, (signature: Hex) => Hex>> = {
  'high s': (signature) => {
    const s = order - BigInt(`0x${signature.slice(66, 130)}`)
    return `${signature.slice(0, 66)}${word(s)}${signature.endsWith('1b') ? '1c' : '1b'}` as Hex
  },
  'high s, v 0 or 1': (signature) => {
    const s = order - BigInt(`0x${signature.slice(66, 130)}`)
    return `${signature.slice(0, 66)}${word(s)}${signature.endsWith('1b') ? '01' : '00'}` as Hex
  },
  '64 bytes (EIP-2098)': (signature) => {
    const parity = signature.endsWith('1c') ? 1n << 255n : 0n
    const s = BigInt(`0x${signature.slice(66, 130)}`) | parity
    return `${signature.slice(0, 66)}${word(s)}` as Hex
  },
  'an additional byte': (signature) => `${signature}00`,
  'an additional word': (signature) => `${signature}${'00'.repeat(32)}`,
  'a leading byte': (signature) => `0x00${signature.slice(2)}`,
  'v 29': (signature) => `${signature.slice(0, 130)}1d` as Hex,
  'v 2': (signature) => `${signature.slice(0, 130)}02` as Hex,
  'v of EIP-155': (signature) => `${signature.slice(0, 130)}25` as Hex,
  'the wrong v': (signature) =>
    `${signature.slice(0, 130)}${signature.endsWith('1b') ? '1c' : '1b'}` as Hex,
  's plus the order': (signature) =>
    `${signature.slice(0, 66)}${word((BigInt(`0x${signature.slice(66, 130)}`) + order) % 2n ** 256n)}${signature.slice(130)}` as Hex,
  zeros: () => `0x${'00'.repeat(65)}`,
  'one byte': () => '0x00',
}
/** These are the same signature. */
const spellings: Readonly<Record<string, (signature: Hex) => Hex>> = {
  'v 0 or 1': (signature) =>
    `${signature.slice(0, 130)}${signature.endsWith('1b') ? '00' : '01'}` as Hex,
  'capital hex': (signature) => `0x${signature.slice(2).toUpperCase()}`,
}
describe('signatures', () => {
  for (const way of ways) {
    test(`attack 18: other forms of one signature, ${way.name}`, async () => {
      let original: Hex = '0x'
      const keep = (signature: Hex) => {
        original = signature
        return signature
      }
      const headers = await way.pay(await ask(at('a/get')), buyer, { signature: keep })
      const inForm = (form: (signature: Hex) => Hex) =>
        tampered(headers, { 'payload.signature': form(original) })
      for (const form of Object.values(forms)) {
        const response = await refused(inForm(form))
        expect(response.status).toBe(402)
      }
      const [first = keep, ...rest] = Object.values(spellings)
      await served(inForm(first))
      for (const form of [keep, ...rest, ...Object.values(forms)]) await refused(inForm(form))
    })
  }

  test('attack 18: another form of a signature while the first one is in progress', async () => {
    for (const way of [x402Usdc, mppPermit]) {
      let original: Hex = '0x'
      const headers = await way.pay(await ask(at('a/get')), buyer, {
        signature: (signature) => {
          original = signature
          return signature
        },
      })
      const all = [...Object.values(forms), ...Object.values(spellings)].map((form) =>
        tampered(headers, { 'payload.signature': form(original) }),
      )
      const { result, ...caused } = await effects(target, () =>
        Promise.all([headers, ...all].map((each) => fetch(at('a/get'), { headers: each }))),
      )
      expect(result.filter(({ status }) => status === 200)).toHaveLength(1)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
    }
  })

  test('attack 18: another key signs, or the payer is another account', async () => {
    for (const way of ways) {
      const asked = await ask(at('a/get'))
      await refused(await way.pay(asked, account(6).local(), { from: buyer.address }))
      const headers = await way.pay(asked, buyer)
      await refused(
        way === mppPermit
          ? tampered(headers, { source: `did:pkh:eip155:4663:${other.address}` })
          : tampered(headers, { [pathOf(way, 'payer')]: other.address, source: undefined }),
      )
    }
  })

  test('attack 19: a signature for the domain of another chain or token', async () => {
    for (const way of ways) {
      const other = networkOf('http://localhost', way.side === 'usdc' ? 'usdg' : 'usdc')
      const own = networkOf('http://localhost', way.side).asset
      const domains: Parameters<typeof signedAs>[2][] = [
        { chainId: other.chainId },
        { chainId: 84532 },
        { asset: other.asset.address },
        { asset: account(6).address },
        { chainId: other.chainId, asset: other.asset.address, eip712: other.asset.eip712 },
        { chainId: 0 },
      ]
      if (way.method === 'eip3009')
        domains.push(
          { eip712: { ...own.eip712, name: 'USDC' } },
          { eip712: { ...own.eip712, version: '3' } },
        )
      const asked = await ask(at('a/get'))
      for (const domain of domains) await refused(await signedAs(way, asked, domain))
      await served(await signedAs(way, asked, {}))
    }
  })

  test('attack 19: a credential of one chain that names the other chain', async () => {
    const asked = await ask(at('a/get'))
    const accepts = Object.fromEntries(
      asked.required.accepts.map((accept) => [
        `${accept.network} ${accept.extra.assetTransferMethod}`,
        accept,
      ]),
    )
    const onBase = await x402Usdc.pay(asked, buyer)
    const onRobinhood = await x402Usdg.pay(asked, buyer)
    await refused(tampered(onBase, { accepted: accepts['eip155:4663 eip3009'] }))
    await refused(tampered(onRobinhood, { accepted: accepts['eip155:8453 eip3009'] }))
    await served(onBase)
    await refused(tampered(onBase, { accepted: accepts['eip155:4663 eip3009'] }))
    await refused(tampered(onBase, { accepted: undefined }))
    const [base, robinhood] = asked.challenges
    if (base === undefined || robinhood === undefined) throw new Error('no two challenges')
    const crossed = { ...base, raw: robinhood.raw, id: robinhood.id }
    await refused({ authorization: await payMpp(crossed, buyer) })
  })
})

describe('more than one credential', () => {
  test('attack 20: every combination of two credentials is refused and spends neither', async () => {
    const asked = await ask(at('a/get'))
    const { authorization = '' } = await mppUsdc.pay(asked, buyer)
    const { authorization: second = '' } = await mppPermit.pay(asked, buyer)
    const { 'payment-signature': signature = '' } = await x402Usdc.pay(asked, buyer)
    const { 'payment-signature': another = '' } = await x402Permit.pay(asked, buyer)
    const token = 'A'.repeat(43)
    const combinations: string[][] = [
      [`Authorization: ${authorization}`, `Payment-Signature: ${signature}`],
      [`Authorization: ${authorization}`, `X-Payment: ${signature}`],
      [`Authorization: ${authorization}`, `Authorization: ${second}`],
      [`Authorization: ${authorization}`, `Authorization: ${authorization}`],
      [`Authorization: ${authorization}, ${second}`],
      [`Authorization: ${authorization},${second}`],
      [`Authorization: Bearer x`, `Authorization: ${authorization}`],
      [`Authorization: ${authorization}`, `Authorization: Bearer x`],
      [`Authorization: Bearer x, ${authorization}`],
      [
        `Authorization: Basic eDp5`,
        `authorization: ${authorization.replace('Payment', 'PAYMENT')}`,
      ],
      [`Payment-Signature: ${signature}`, `Payment-Signature: ${another}`],
      [`Payment-Signature: ${signature}`, `Payment-Signature: ${signature}`],
      [`Payment-Signature: ${signature},${another}`],
      [`Payment-Signature: ${signature}`, `X-Payment: ${another}`],
      [`X-Payment: ${signature}`, `X-Payment: ${another}`],
      [`Payment-Redeem: ${token}`, `Payment-Signature: ${signature}`],
      [`Payment-Redeem: ${token}`, `Authorization: ${authorization}`],
      [`Payment-Redeem: ${token}`, `Payment-Redeem: ${token}`],
    ]
    for (const lines of combinations) {
      const { result, ...caused } = await effects(target, () =>
        exchange(target.url, request('/m/a/get', [...lines, close])),
      )
      const names = lines.map((line) => line.slice(0, 30))
      expect({ names, status: result[0]?.status, ...caused }).toEqual({
        names,
        status: 400,
        ...nothing,
      })
    }
    await served({ 'payment-signature': signature, 'x-payment': signature })
    await served({ 'x-payment': another })
    await served({ authorization })
  })
})
