import { describe, expect, test } from 'bun:test'
import {
  BatchSettlementEvmScheme,
  InMemoryClientChannelStorage,
} from '@x402/evm/batch-settlement/client'
import type { Address } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import type { TransferMethod } from '../../src/protocol/Asset'
import * as Channel from '../../src/protocol/Channel'
import * as ChannelPayload from '../../src/protocol/ChannelPayload'
import * as Crypto from '../../src/protocol/Crypto'
import { decodeJson, encodeJson } from '../../src/protocol/Header'
import * as HeaderBudget from '../../src/protocol/HeaderBudget'
import type * as Json from '../../src/protocol/Json'
import { isFault } from '../../src/protocol/Problem'
import * as Sponsoring from '../../src/protocol/Sponsoring'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import { chainA, chainB, offer, otherChain, payTo } from './networks'

const buyer = privateKeyToAccount(`0x${'22'.repeat(32)}`)
const receiverAuthorizer: Address = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const zero = `0x${'0'.repeat(40)}`

const termsBy = (method: TransferMethod) => ({
  ...{ receiverAuthorizer, withdrawDelay: 86_400, minDepositAtomic: 500_000n, method },
})
const channelOf: X402.ChannelOf = ({ network }) =>
  termsBy(network.chainId === chainB.chainId ? 'permit2' : 'eip3009')
const offers = [offer(chainA), offer(chainB)]
const entries = X402.accepts(offers, { channelOf }).filter(
  ({ scheme }) => scheme === Channel.scheme,
)
const [onA, onB] = entries
if (onA === undefined || onB === undefined) throw new Error('no entry of channels')

type Part = { [member: string]: unknown }

/** As the client has them from a 402. */
const termsOf = (requirements: X402.Requirements) =>
  structuredClone(requirements) as Parameters<BatchSettlementEvmScheme['buildChannelConfig']>[0]

/** The payload of the stock client; with `charged`, of a channel with a balance. */
async function stock(
  requirements: X402.Requirements,
  charged?: string,
  voucherSigner = buyer,
): Promise<Part> {
  const storage = new InMemoryClientChannelStorage()
  const client = new BatchSettlementEvmScheme(buyer, { storage, voucherSigner })
  const terms = termsOf(requirements)
  if (charged !== undefined) {
    const id = Channel.idOf(
      ChannelPayload.readConfig({ ...client.buildChannelConfig(terms) }),
      Number(requirements.network.slice('eip155:'.length)),
    )
    await storage.set(id, { chargedCumulativeAmount: charged, balance: '500000' })
  }
  const { payload } = await client.createPaymentPayload(2, terms)
  return { x402Version: 2, payload, accepted: requirements }
}

const parse = (given: Part) => {
  const parsed = X402.parsePayload(encodeJson(given))
  if (isFault(parsed)) throw new Error(parsed.detail)
  return parsed
}
const match = (given: Part, own = offers, terms: X402.ChannelOf | undefined = channelOf) =>
  X402.matchOffer(parse(given), own, terms && { channelOf: terms })
const transferOf = (given: Part) => {
  const matches = match(given)
  if (isFault(matches)) throw new Error(matches.detail)
  const [only] = matches
  if (only === undefined || matches.length > 1) throw new Error(`${matches.length} matches`)
  return only.transfer
}
const codeOf = (result: object) => (isFault(result) ? result.code : 'none')

test('the entry of an offer has numbers and texts as stock clients read them', () => {
  expect(onA).toEqual({
    scheme: 'batch-settlement',
    network: 'eip155:8453',
    amount: '10000',
    asset: chainA.asset.address,
    payTo,
    maxTimeoutSeconds: 300,
    extra: {
      receiverAuthorizer,
      withdrawDelay: 86_400,
      ...chainA.asset.eip712,
      assetTransferMethod: 'eip3009',
      minDeposit: '500000',
    },
  })
  expect(onB.extra.assetTransferMethod).toBe('permit2')
  const { assetTransferMethod: _, ...extra } = onA.extra
  expect(X402.brief(onA)).toEqual({ ...onA, extra })
  expect(X402.brief(onB)).toBe(onB)
})

test('entries of channels come last, and alone where exact is not sold', () => {
  const facilitatorOf = () => receiverAuthorizer
  const schemes = X402.accepts(offers, { channelOf, facilitatorOf }).map(({ scheme }) => scheme)
  const channels = [Channel.scheme, Channel.scheme] as const
  expect(schemes).toEqual(['exact', 'exact', 'exact', 'upto', 'upto', ...channels])
  const only = X402.accepts(offers, { channelOf, isExact: false })
  expect(only.map(({ scheme }) => scheme)).toEqual([...channels])
  expect(X402.accepts(offers).map(({ scheme }) => scheme)).toEqual(['exact', 'exact', 'exact'])
})

test('a head has the entries of channels behind exact ones, and as its base without those', () => {
  for (const isExact of [true, false]) {
    const accepts = X402.accepts(offers, { channelOf, isExact })
    const extensions = X402.extensions({ offers: [], method: 'GET', salt: 'abcdefghijklmno' })
    const url = 'https://gw.example/m/weather/forecast'
    const full = X402.paymentRequired({ error: 'none', resource: { url }, accepts, extensions })
    const budget = HeaderBudget.compile({
      ...{ full, more: [], signed: [], isTestnet: () => false, challenges: isExact ? 2 : 0 },
      ...{ challengeBytes: (_: unknown, count: number) => count * 300, besideBytes: 200 },
      signInBytes: 0,
    })
    const ask = { url, hasDigest: false, error: 'none', moreBytes: 0, isX402: false }
    const choice = HeaderBudget.choose(budget, { ...ask, hasSignIn: false })
    expect(choice.base.accepts.map(({ scheme }) => scheme)).toEqual(
      isExact ? ['exact', 'exact'] : [Channel.scheme, Channel.scheme],
    )
    expect(HeaderBudget.headOf(budget, choice).accepts).toEqual([...accepts])
  }
})

describe('what the stock client sends', () => {
  test('is a deposit by EIP-3009 with its first voucher', async () => {
    const transfer = transferOf(await stock(onA))
    const { voucher, signature } = transfer
    if (voucher?.deposit === undefined) throw new Error('no deposit')
    const { config, channelId, deposit } = voucher
    expect(config).toEqual({
      ...{ payer: buyer.address, payerAuthorizer: buyer.address, receiver: payTo },
      ...{ receiverAuthorizer, token: chainA.asset.address, withdrawDelay: 86_400 },
      salt: `0x${'0'.repeat(64)}`,
    })
    expect(transfer).toMatchObject({
      ...{ method: 'channel', network: 'eip155:8453', chainId: 8453, asset: chainA.asset.address },
      ...{ payer: buyer.address, payee: payTo, amountAtomic: 10_000n, validAfter: 0n },
      ...{ validBefore: 2n ** 256n - 1n, nonce: Channel.nonceOf(channelId, 0n) },
    })
    expect([voucher.kind, voucher.maxAtomic]).toEqual(['deposit', 10_000n])
    expect(deposit).toMatchObject({ amountAtomic: 500_000n, by: { method: 'eip3009' } })
    expect(Crypto.recover(Transfer.digest(transfer, chainA.asset), signature)).toBe(buyer.address)
    const channel = { config, chainId: 8453 }
    const digest = ChannelPayload.depositDigest(channel, deposit, chainA.asset)
    expect(Crypto.recover(digest, deposit.by.signature)).toBe(buyer.address)
  })

  test('is a deposit by Permit2 where the token has no receiveWithAuthorization of bytes', async () => {
    const payload = await stock(onB)
    const { voucher } = transferOf(payload)
    if (voucher?.deposit?.by.method !== 'permit2') throw new Error('no deposit by Permit2')
    const channel = { config: voucher.config, chainId: 4663 }
    const digest = ChannelPayload.depositDigest(channel, voucher.deposit, chainB.asset)
    expect(Crypto.recover(digest, voucher.deposit.by.signature)).toBe(buyer.address)
    expect(codeOf(match(payload, offers, () => termsBy('eip3009')))).toBe(
      'invalid_payment_requirements',
    )
    const other = { ...onB, extra: { ...onB.extra, assetTransferMethod: 'eip3009' } }
    expect(codeOf(match({ ...payload, accepted: other }, offers, () => termsBy('eip3009')))).toBe(
      'invalid_batch_settlement_evm_erc3009_authorization_required',
    )
  })

  test('is a voucher over what was charged and the price, whatever a 402 that corrects adds', async () => {
    const payload = await stock(onA, '70000')
    const transfer = transferOf(payload)
    expect(transfer.voucher).toMatchObject({ kind: 'voucher', maxAtomic: 80_000n })
    expect(transfer.amountAtomic).toBe(10_000n)
    expect(transfer.nonce).toBe(Channel.nonceOf(transfer.voucher?.channelId ?? '0x', 70_000n))
    const other = privateKeyToAccount(`0x${'33'.repeat(32)}`)
    const byOther = transferOf(await stock(onA, '70000', other))
    const digest = Transfer.digest(byOther, chainA.asset)
    expect([byOther.payer, Transfer.signerOf(byOther)]).toEqual([buyer.address, other.address])
    expect(Crypto.recover(digest, byOther.signature)).toBe(other.address)
    const state = { channelState: { balance: '1' }, voucherState: { signature: '0x' } }
    const { assetTransferMethod: _, ...extra } = onA.extra
    for (const more of [state, { channelState: state.channelState }]) {
      const corrected = { ...onA, extra: { ...extra, ...more } }
      expect(transferOf({ ...payload, accepted: corrected })).toEqual(transfer)
    }
    const { withdrawDelay: __, ...less } = onA.extra
    const wrong = [
      { ...onA, amount: '9999' },
      { ...onA, extra: { ...onA.extra, withdrawDelay: '86400' } },
      { ...onA, extra: { ...onA.extra, minDeposit: '1' } },
      { ...onA, extra: { ...onA.extra, more: 1 } },
      { ...onA, extra: less },
    ]
    for (const accepted of wrong)
      expect(codeOf(match({ ...payload, accepted }))).toBe('invalid_payment_requirements')
  })

  test('is a refund of the newest voucher, which pays nothing', async () => {
    const storage = new InMemoryClientChannelStorage()
    const client = new BatchSettlementEvmScheme(buyer, { storage })
    const config = ChannelPayload.readConfig({ ...client.buildChannelConfig(termsOf(onA)) })
    const id = Channel.idOf(config, 8453)
    await storage.set(id, { chargedCumulativeAmount: '70000', balance: '500000' })
    const sent: string[] = []
    const fetch = async (_: unknown, init?: RequestInit) => {
      const signature = new Headers(init?.headers).get('payment-signature')
      if (signature !== null) sent.push(signature)
      const required = X402.paymentRequired({
        ...{
          error: 'no',
          resource: { url: 'https://gw.example/' },
          accepts: [onA],
          extensions: {},
        },
      })
      const headers = { 'PAYMENT-REQUIRED': encodeJson(required) }
      return new Response('', { status: 402, headers })
    }
    const options = { amount: '400000', fetch: fetch as typeof globalThis.fetch }
    const refused = await client.refund('https://gw.example/', options).catch(() => undefined)
    expect(refused).toBeUndefined()
    const transfer = transferOf(decodeJson(sent[0] ?? '', 'either'))
    const { voucher } = transfer
    expect(voucher).toMatchObject({ kind: 'refund', maxAtomic: 70_000n, refundAtomic: 400_000n })
    expect([transfer.amountAtomic, transfer.nonce]).toEqual([0n, Channel.nonceOf(id, 70_000n)])
  })
})

test('error: a channel that has other terms than the offer, in the order of the reference', async () => {
  const payload = await stock(onA, '70000')
  const config = (payload.payload as { channelConfig: Json.JsonObject }).channelConfig
  const other = '0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65'
  /** With the id of the changed config, so that the next check is reached. */
  const changed = (change: Json.JsonObject, own = true) => {
    const copy = structuredClone(payload) as { payload: { voucher: Part; channelConfig: object } }
    copy.payload.channelConfig = { ...config, ...change }
    const read = ChannelPayload.readConfig({ ...config, ...change })
    if (own) copy.payload.voucher.channelId = Channel.idOf(read, 8453)
    return codeOf(match(copy))
  }
  const prefix = 'invalid_batch_settlement_evm'
  expect(changed({ salt: `0x${'1'.repeat(64)}` }, false)).toBe(`${prefix}_channel_id_mismatch`)
  expect(changed({ salt: `0x${'1'.repeat(64)}` })).toBe('none')
  const later = { withdrawDelay: 900, token: other, receiverAuthorizer: other, receiver: other }
  expect(changed(later)).toBe(`${prefix}_receiver_mismatch`)
  expect(changed({ ...later, receiver: payTo })).toBe(`${prefix}_receiver_authorizer_mismatch`)
  expect(changed({ withdrawDelay: 900, token: other })).toBe(`${prefix}_token_mismatch`)
  expect(changed({ withdrawDelay: 900 })).toBe(`${prefix}_withdraw_delay_mismatch`)
  expect(changed({ payerAuthorizer: other })).toBe('none')
  // A contract could deny its signature at the claim.
  expect(changed({ payerAuthorizer: zero })).toBe(`${prefix}_voucher_signature`)
  const early = () => ({ ...termsBy('eip3009'), withdrawDelay: 60 })
  const [entry = onA] = X402.accepts([offer(chainA)], { channelOf: early, isExact: false })
  const copy = { ...(await stock(entry, '70000')), accepted: entry }
  expect(codeOf(match(copy, [offer(chainA)], early))).toBe(`${prefix}_withdraw_delay_out_of_range`)
})

test('attack: a voucher of another chain, below the price, or where channels are not sold', async () => {
  const payload = await stock(onA, '70000')
  const elsewhere = otherChain(chainA, 84532)
  const accepted = { ...onA, network: elsewhere.id }
  expect(codeOf(match({ ...payload, accepted }, [offer(elsewhere)]))).toBe(
    'invalid_batch_settlement_evm_channel_id_mismatch',
  )
  const dear = offer(chainA, 80_001n)
  const [entry] = X402.accepts([dear], { channelOf, isExact: false })
  expect(codeOf(match({ ...payload, accepted: entry }, [dear]))).toBe(
    'invalid_batch_settlement_evm_cumulative_amount_mismatch',
  )
  expect(codeOf(X402.matchOffer(parse(payload), offers))).toBe('unsupported_scheme')
  expect(codeOf(match(payload, offers, () => undefined))).toBe('unsupported_scheme')
  const exact = X402.accepts([offer(chainA)])[0]
  expect(codeOf(match({ ...payload, accepted: exact }))).toBe('unsupported_scheme')
  expect(codeOf(match({ ...payload, accepted: undefined }))).toBe('invalid_payload')
  expect(codeOf(match(payload, [offer(chainB)]))).toBe('invalid_network')
})

test('attack: a signature with a high s, or of another key, is not that of the channel', async () => {
  const transfer = transferOf(await stock(onA, '70000'))
  const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
  const { signature } = transfer
  const s = (order - BigInt(`0x${signature.slice(66, 130)}`)).toString(16).padStart(64, '0')
  const high = `${signature.slice(0, 66)}${s}${signature.endsWith('1b') ? '1c' : '1b'}`
  const digest = Transfer.digest(transfer, chainA.asset)
  expect(Transfer.signerOf(transfer)).toBe(buyer.address)
  expect(Crypto.recover(digest, signature)).toBe(buyer.address)
  expect(Crypto.recover(digest, high)).toBeUndefined()
  const { voucher, ...stored } = transfer
  if (voucher === undefined) throw new Error('no voucher')
  const dear = { ...transfer, voucher: { ...voucher, maxAtomic: voucher.maxAtomic + 1n } }
  expect(Crypto.recover(Transfer.digest(dear, chainA.asset), signature)).not.toBe(buyer.address)
  expect(() => Transfer.digest(stored, chainA.asset)).toThrow('no digest')
})

test('error: what a deposit by Permit2 says twice must be the same', async () => {
  const payload = await stock(onB)
  const other = '0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65'
  const prefix = 'invalid_batch_settlement_evm'
  for (const [change, code] of [
    [{ from: other, spender: other }, 'permit2_invalid_signature'],
    [{ spender: other }, 'permit2_invalid_spender'],
    [{ permitted: { token: other, amount: '500000' } }, 'token_mismatch'],
    [{ permitted: { token: chainB.asset.address, amount: '1' } }, 'permit2_amount_mismatch'],
    [{ witness: { channelId: `0x${'1'.repeat(64)}` } }, 'channel_id_mismatch'],
  ] as const) {
    const copy = structuredClone(payload) as {
      payload: { deposit: { authorization: { permit2Authorization: object } } }
    }
    Object.assign(copy.payload.deposit.authorization.permit2Authorization, change)
    expect(codeOf(match(copy))).toBe(`${prefix}_${code}`)
  }
})

test('a permit of the deposit belongs to it, and must be for its amount', async () => {
  const transfer = transferOf(await stock(onB))
  const { payer, asset, signature } = transfer
  const info = (amount: string) => ({
    ...{ from: payer, asset, spender: '0x000000000022D473030F116dDEE9F6B43aC78BA3', amount },
    ...{ nonce: '0', deadline: '99999999999', version: '1', signature },
  })
  const read = (amount: string) =>
    Sponsoring.read({ [Sponsoring.permitName]: { info: info(amount) } }, transfer, {
      ...{ now: Date.now(), takesApprovals: true },
    })
  const permit = read('500000')
  if (isFault(permit)) throw new Error(permit.detail)
  const { voucher, permit2612 } = Sponsoring.withPermit(transfer, permit)
  expect(permit2612).toBeUndefined()
  expect(voucher?.deposit?.by).toMatchObject({ permit2612: { valueAtomic: 500_000n } })
  expect(codeOf(read('10000'))).toBe('invalid_batch_settlement_evm_eip2612_amount_mismatch')
})

test('the time of a deposit leaves its transaction six seconds', async () => {
  const at = (seconds: number) => seconds * 1000
  const prefix = 'invalid_batch_settlement_evm'
  const signed = { salt: `0x${'1'.repeat(64)}`, signature: '0x11' } as const
  const eip3009 = { method: 'eip3009' as const, validAfter: 100n, validBefore: 200n, ...signed }
  const by = { method: 'permit2' as const, nonce: signed.salt, deadline: 200n, signature: '0x11' }
  const codes = (deposit: Channel.Deposit, ...times: number[]) =>
    times.map((time) => codeOf(ChannelPayload.checkWindow(deposit, at(time)) ?? {}))
  expect(codes({ amountAtomic: 1n, by: eip3009 }, 99, 100, 194, 195)).toEqual([
    `${prefix}_payload_authorization_valid_after`,
    ...['none', 'none', `${prefix}_payload_authorization_valid_before`],
  ])
  const permit = { amountAtomic: 1n, by: { ...by, signature: '0x11' as const } }
  expect(codes(permit, 0, 194, 195)).toEqual([
    ...['none', 'none', `${prefix}_permit2_deadline_expired`],
  ])
})

/** Every member of a payload by its path, parents first. */
function pathsOf(value: unknown, path: readonly string[] = []): (readonly string[])[] {
  if (typeof value !== 'object' || value === null) return [path]
  const inner = Object.entries(value).flatMap(([name, each]) => pathsOf(each, [...path, name]))
  return path.length === 0 ? inner : [path, ...inner]
}

test('error: each malformed member of a payload is named, and none is an exception', async () => {
  const refund = await stock(onA, '70000')
  refund.payload = { ...(refund.payload as object), type: 'refund', amount: '5' }
  const wrong = [null, 'x', -1, 1.5, 2 ** 54, true, [], {}, '0x', '1'.repeat(80), '-1']
  let checked = 0
  for (const payload of [await stock(onA), await stock(onB), refund]) {
    for (const path of pathsOf(payload.payload)) {
      const name = path.at(-1) ?? ''
      for (const bad of wrong) {
        const copy = structuredClone(payload)
        const parent = path
          .slice(0, -1)
          .reduce((at, each) => at[each] as Part, copy.payload as Part)
        // Null is absent, which the amount of a refund may be; an empty object lacks its members.
        if (bad === null && path.join() === 'amount') continue
        const isObject = typeof parent[name] === 'object' && typeof bad === 'object'
        if (isObject && bad !== null && !Array.isArray(bad)) continue
        parent[name] = bad
        const found = X402.parsePayload(encodeJson(copy))
        if (!isFault(found)) throw new Error(`${path.join('.')} may be ${JSON.stringify(bad)}`)
        expect(found.code).toBe('invalid_payload')
        expect(found.detail).toContain(
          name.endsWith('Authorization') && bad === null ? 'authorization needs' : name,
        )
        checked++
      }
    }
  }
  expect(checked).toBeGreaterThan(400)
})

test('error: amounts above 128 bits, long signatures and delays above 40 bits are refused', async () => {
  const payload = await stock(onA)
  const faultOf = (change: (payload: Part) => void) => {
    const copy = structuredClone(payload)
    change(copy.payload as Part)
    const found = X402.parsePayload(encodeJson(copy))
    return isFault(found) ? found.detail : 'none'
  }
  const above = (2n ** 128n).toString()
  const part = (at: unknown, name: string) => (at as Part)[name] as Part
  expect(
    faultOf((given) => {
      part(given, 'voucher').maxClaimableAmount = above
    }),
  ).toContain('maxClaimableAmount is not an unsigned integer of 128 bits')
  expect(
    faultOf((given) => {
      part(given, 'deposit').amount = above
    }),
  ).toContain('amount is not an unsigned integer of 128 bits')
  expect(
    faultOf((given) => {
      part(given, 'channelConfig').withdrawDelay = 2 ** 40
    }),
  ).toContain('withdrawDelay is not of 40 bits')
  for (const [bytes, expected] of [
    [4096, 'none'],
    [4097, 'signature is not a signature'],
  ] as const)
    expect(
      faultOf((given) => {
        const authorization = part(part(given, 'deposit'), 'authorization')
        part(authorization, 'erc3009Authorization').signature = `0x${'11'.repeat(bytes)}`
      }),
    ).toContain(expected)
})
