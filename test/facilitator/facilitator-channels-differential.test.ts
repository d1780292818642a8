import { afterAll, beforeAll, expect, test } from 'bun:test'
import { type Address, type Hex, pad, zeroAddress } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import type { Id } from '../../src/protocol/Network'
import {
  type ChannelFault,
  type ChannelSpec,
  channelFaults,
  depositFaults,
  makeChannelBody,
  voucherFaults,
} from '../harness/channel-facilitation'
import {
  createComparison,
  networkOf as networkIn,
  prepareWallets,
  type Rule,
  type Wallets,
} from '../harness/differential'
import { type Body, post } from '../harness/facilitation'
import { createReference, type Reference } from '../harness/reference'
import { some } from '../harness/samples'
import { type Shop, startShop } from '../harness/shop'

/**
 * The same requests about channels to the reference facilitator and to ours, on the same chains. The results,
 * codes and amounts must be the same, except for the rules below.
 */

const networks = { eip3009: 'eip155:8453', permit2: 'eip155:4663' } as const satisfies Record<
  string,
  Id
>

/** `funded`: the channel has 1,000, of which 300 are claimed. Other channels are empty. */
type Spec = ChannelSpec & { method: 'eip3009' | 'permit2'; isFunded?: boolean }

const has = ({ faults = [] }: Spec, ...names: readonly ChannelFault[]) =>
  names.some((name) => faults.includes(name))
type Json = Record<string, unknown>
const malformed = /^invalid_(payload|payment_requirements)$/

const rules: readonly Rule<Spec>[] = [
  {
    name: 'requests at which it throws, are 400 with a code here',
    by: 'peers.md 4.1, last item; design.md 5',
    allows: ({ ours, theirs }) =>
      theirs.throws === true && ours.status === 400 && malformed.test(ours.code),
  },
  {
    name: 'an asset that is not configured is refused before the terms of the channel',
    by: 'peers.md 3, attack 7',
    allows: ({ ours, theirs }) => !theirs.ok && ours.code === 'asset_not_allowed',
  },
  {
    name: 'a payer cannot pay itself',
    by: 'design.md 5, last item',
    allows: ({ ours, spec }) =>
      spec.config?.receiver === account(1).address && ours.code === 'payee_not_allowed',
  },
  {
    name: 'less than the minimum is not worth a transaction',
    by: 'design.md 5',
    allows: ({ ours, spec }) => spec.amount === 0n && ours.code === 'amount_below_minimum',
  },
  {
    name: 'a voucher of a form that the contract refuses at the claim has no signer',
    by: 'peers.md 3, attack 18',
    allows: ({ ours, spec }) =>
      has(spec, 'highS', 'lowV') && ours.code === 'invalid_batch_settlement_evm_voucher_signature',
  },
  {
    name: 'a deposit with a high s has no signer',
    by: 'peers.md 3, attack 18',
    allows: ({ ours, spec }) =>
      has(spec, 'depositHighS') &&
      /(receive_authorization|permit2_invalid)_signature$/.test(ours.code),
  },
  {
    name: 'an approve beside a deposit is not read',
    by: 'sponsoring.md: approves are sponsored for transfers',
    allows: ({ theirs, spec }) =>
      has(spec, 'approval') &&
      theirs.code === 'invalid_batch_settlement_evm_erc20_approval_unavailable',
  },
  {
    name: 'what was claimed before is a success without a transaction',
    by: 'schemes.md 2.2, claims are cumulative',
    allows: ({ ours, theirs, spec }) =>
      spec.kind === 'claim' && ours.ok && theirs.ok && ours.isSent === false,
  },
]

let shop: Shop
let reference: Reference
let wallets: Wallets
const poor = privateKeyToAccount(`0x${'66'.repeat(32)}`)
const networkOf = ({ method }: Pick<Spec, 'method'>) => networkIn(shop, networks[method])

beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        ...{ payTo: 'any', verifyPerMinute: 1e6, settlePerMinute: 1e6 },
      },
    }),
  })
  reference = createReference(shop.config.networks, (id) => shop.chains[id]?.url ?? '')
  wallets = await prepareWallets(shop)
  for (const method of ['eip3009', 'permit2'] as const) {
    await fund({ method, kind: 'deposit', deposit: { depositSalt: usedSalt } })
  }
})
afterAll(() => shop?.stop())

const usedSalt: Hex = pad('0x77')
const settle = async (spec: Spec) =>
  (await post(`${shop.url}/settle`, await makeChannelBody(networkOf(spec), spec))).json

/** Deposits 1,000 and claims 300. */
async function fund(spec: Spec): Promise<void> {
  expect(await settle({ ...spec, amount: 1_000n })).toMatchObject({ success: true, amount: '1000' })
  expect(await settle({ ...spec, kind: 'claim', max: 300n })).toMatchObject({ success: true })
}

const { compare, unused } = createComparison<Spec>(
  { shop: () => shop, reference: () => reference },
  rules,
  async (operation, spec) => {
    const isOwn = operation === 'settle' && !spec.isFunded
    const bodies: Body[] = []
    for (const salt of [pad('0x01'), pad('0x02')] as const) {
      // A channel of each: both send what they are asked for.
      const config = isOwn ? { salt: fresh(salt), ...spec.config } : spec.config
      const body = await makeChannelBody(networkOf(spec), { ...spec, ...(config && { config }) })
      bodies.push(body as unknown as Body)
    }
    return bodies as [Body, Body]
  },
)

/** Claims, sweeps and refunds of a channel of ours and of one of the reference. */
async function settleBoth(method: Spec['method'], salts: readonly [Hex, Hex]): Promise<void> {
  const receivers = [account(2).address, account(4).address]
  const ask = async (index: number, spec: Omit<Spec, 'method'>) => {
    const config = { salt: salts[index] as Hex, receiver: receivers[index] as Address }
    const body = await makeChannelBody(networkOf({ method }), { method, ...spec, config })
    const { paymentPayload, paymentRequirements } = body
    const sent = [paymentPayload, paymentRequirements] as unknown as Parameters<Reference['settle']>
    const answer =
      index === 0
        ? (await post(`${shop.url}/settle`, body)).json
        : { ...(await reference.settle(...sent)) }
    // The reference does not always tell the payer of a failure.
    const { transaction, extra, errorMessage, payer, ...members } = answer as Json
    const state = (extra as { channelState?: object } | undefined)?.channelState
    const told = members.success === true ? { payer } : {}
    return { ...members, ...told, isSent: transaction !== '', state: { ...state, channelId: '' } }
  }
  for (const spec of [
    { kind: 'deposit' },
    { kind: 'claim', max: 300n },
    { kind: 'settle' },
    { kind: 'settle' },
    { kind: 'order', max: 400n, charged: 400n, amount: 200n },
    { kind: 'order', max: 400n, nonce: 1n, amount: 5_000n },
    { kind: 'order', max: 400n, nonce: 2n, amount: 1n },
    { kind: 'deposit', max: 1_000n, amount: 700n },
  ] as const) {
    expect(await ask(0, spec)).toEqual(await ask(1, spec))
  }
}

let count = 0
const fresh = (salt: Hex): Hex =>
  `0x${(BigInt(salt) + (BigInt(++count) << 8n)).toString(16).padStart(64, '0')}`

const walletsOf = (method: Spec['method']) => {
  const of = (name: string) => wallets.get(`${networks[method]} ${name}`) ?? zeroAddress
  return { accepting: of('wallet'), refusing: of('refusing') }
}

/** One alone, and every two of a list. */
const pairsOf = <T>(list: readonly T[]): T[][] =>
  list.flatMap((left, index) => [[left], ...list.slice(index + 1).map((right) => [left, right])])

test('verify of vouchers and refunds equals the reference, in its order', async () => {
  const voucher = (more: Partial<Spec>): Spec => ({ kind: 'voucher', method: 'eip3009', ...more })
  const wallet = walletsOf('eip3009')
  const own = (payer: Address): Partial<Spec> => ({
    config: { payer, payerAuthorizer: zeroAddress },
    max: 400n,
  })
  const states = [
    ...[400n, 1_000n, 1_001n, 300n].map((max) => voucher({ max })),
    ...[300n, 299n].map((max) => voucher({ kind: 'refund', max })),
    voucher({ max: 2_000n, config: { salt: pad('0x99') } }),
    // Without an authorizer the payer signs itself, by its key or its code.
    ...[account(1).address, wallet.accepting, wallet.refusing].map((each) => voucher(own(each))),
    voucher({ ...own(wallet.accepting), faults: ['voucherSigner'] }),
    voucher({ faults: ['badAmount'] }),
    ...(['claim', 'settle', 'other'] as const).map((kind) => voucher({ kind })),
  ]
  const faulty = pairsOf([...channelFaults, ...voucherFaults]).map((faults) =>
    voucher({ max: 1_001n, faults }),
  )
  const { counts, unexplained } = await compare('verify', [...states, ...faulty])
  expect(unexplained).toEqual([])
  expect(counts.get('same')).toBeGreaterThan(80)
})

for (const method of ['eip3009', 'permit2'] as const) {
  test(`verify of deposits by ${method} equals the reference, in its order`, async () => {
    const deposit = (more: Partial<Spec>): Spec => ({ kind: 'deposit', method, max: 400n, ...more })
    const wallet = walletsOf(method)
    const states = [
      ...[400n, 2_000n, 2_001n, 300n].map((max) => deposit({ max })),
      ...[400n, 2_001n].map((max) => deposit({ payer: poor, max })),
      deposit({ payer: account(3).local(), config: { salt: pad('0x31') } }),
      deposit({ payer: account(3).local(), faults: ['permit'] }),
      ...[wallet.accepting, wallet.refusing].map((payer) =>
        deposit({ config: { payer, payerAuthorizer: account(1).address } }),
      ),
      deposit({ amount: 0n }),
      deposit({ config: { receiver: account(1).address } }),
    ]
    const pairs = pairsOf([...channelFaults.slice(3), ...depositFaults[method], ...voucherFaults])
    const all = some(pairs).map((faults) => deposit({ max: 2_001n, faults }))
    const each = depositFaults[method].map((fault) => deposit({ max: 2_001n, faults: [fault] }))
    const { counts, unexplained } = await compare('verify', [...states, ...each, ...all])
    expect(unexplained).toEqual([])
    expect(counts.get('same')).toBeGreaterThan(states.length + each.length / 2)
  })
}

test('settle equals the reference: what is sent, the amounts, and the codes', async () => {
  for (const method of ['eip3009', 'permit2'] as const) {
    const ask = async (spec: Omit<Spec, 'method'>) => {
      const { unexplained } = await compare('settle', [{ method, ...spec }])
      expect(unexplained).toEqual([])
    }
    await ask({ kind: 'voucher' })
    await ask({ kind: 'refund' })
    await ask({ kind: 'other' })
    for (const fault of ['otherId', 'voucherSigner', 'depositSigner', 'otherMethod'] as const)
      await ask({ kind: 'deposit', faults: [fault] })
    await ask({ kind: 'deposit' })
    const payable = { isFunded: true, max: 500n } as const
    const faulty: ChannelFault[][] = [['noClaimSignature'], ['otherSigner'], ['voucherSigner']]
    for (const faults of faulty) await ask({ kind: 'claim', ...payable, faults })
    await ask({ kind: 'claim', ...payable, charged: 501n })
    await ask({ kind: 'claim', ...payable, max: 2_000n, charged: 1_001n })
    // Nothing is left of it.
    await ask({ kind: 'claim', ...payable, charged: 300n })
    await ask({ kind: 'settle', config: { receiver: account(2).address } })
    const order = { kind: 'order', isFunded: true, max: 300n } as const
    for (const fault of ['noRefundSignature', 'otherSigner'] as const)
      await ask({ ...order, faults: [fault] })
    await ask({ ...order, amount: 0n })
    await ask({ ...order, nonce: 1n })
    await ask({ ...order, max: 1_000n, charged: 1_000n })
    await ask({ ...order, max: 400n, charged: 400n, faults: ['noClaimSignature'] })
    await ask({ ...order, max: 400n, charged: 400n, faults: ['voucherSigner'] })
    // Of a channel of each: what is claimed, swept and refunded.
    const pair = [fresh(pad('0x01')), fresh(pad('0x02'))] as const
    await settleBoth(method, pair)
  }
})

test('every rule applies to at least one request about channels', () => {
  expect(unused()).toEqual([])
})
