import { afterAll, beforeAll, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, type LocalAccount } from 'viem'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { inSeconds } from '../harness/buyer'
import {
  createComparison,
  erc20,
  formOf,
  networkOf as networkIn,
  type Operation,
  prepareWallets,
  type Rule,
  type Wallets,
} from '../harness/differential'
import { type Body, charging, makeBody, post } from '../harness/facilitation'
import { createReference, type Reference } from '../harness/reference'
import { some } from '../harness/samples'
import { payee, type Shop, startShop } from '../harness/shop'
import { generatedUpto, pairsOfUpto, type UptoFault, type UptoSpec } from '../harness/upto-specs'

/**
 * The same requests of the scheme `upto` to the reference facilitator and to ours. Each payment
 * names the relayer of the facilitator that gets it. The results and codes must be the same, except
 * for the rules below. Each rule names what requires it.
 */

const malformed =
  /^(invalid_payload|invalid_x402_version|unsupported_scheme|invalid_network|invalid_payment_requirements)$/
const has = ({ faults }: UptoSpec, ...names: readonly UptoFault[]) =>
  names.some((name) => faults.includes(name))

const rules: readonly Rule<UptoSpec>[] = [
  {
    name: 'requests at which it throws, or whose payload lacks members, are 400 with a code here',
    by: 'peers.md 4.1, last item; design.md 5',
    allows: ({ ours, theirs }) =>
      (theirs.throws === true || theirs.code === 'unsupported_payload_type') &&
      ours.status === 400 &&
      malformed.test(ours.code),
  },
  {
    name: 'amounts are decimal digits without sign, prefix or leading zeros',
    by: 'peers.md 3, attack 6',
    allows: ({ ours, spec }) =>
      has(spec, 'hexValue', 'zeroPadded') && ours.status === 400 && malformed.test(ours.code),
  },
  {
    name: 'an asset that is not configured is refused before all else',
    by: 'peers.md 3, attack 7',
    allows: ({ ours, theirs }) => !theirs.ok && ours.code === 'asset_not_allowed',
  },
  {
    name: 'a payer cannot pay itself',
    by: 'design.md 5, last item',
    allows: ({ ours, spec }) => has(spec, 'selfPaid') && ours.code === 'payee_not_allowed',
  },
  {
    name: 'a ceiling below the minimum of this facilitator is refused before all else',
    by: 'design.md 5',
    allows: ({ ours, theirs, spec }) =>
      has(spec, 'noCeiling') && !theirs.ok && ours.code === 'amount_below_minimum',
  },
  {
    name: 'spender and validAfter may be left out, because the signature counts',
    by: 'specification 2.3',
    allows: ({ theirs, spec }) =>
      has(spec, 'noSpender', 'noValidAfter') && theirs.code === 'unsupported_payload_type',
  },
  {
    name: 'v of 0 or 1 means 27 or 28',
    by: 'peers.md 3, attack 18',
    allows: ({ ours, theirs, spec }) =>
      ours.ok && has(spec, 'lowV') && theirs.code === 'permit2_simulation_failed',
  },
  {
    name: 'a signature with a high s has no signer',
    by: 'peers.md 3, attack 18',
    allows: ({ ours, spec }) => has(spec, 'highS') && ours.code === 'invalid_permit2_signature',
  },
  {
    name: 'a used Permit2 nonce is reported as used, also after its expiry',
    by: 'peers.md 4.6; design.md 3.3, 3.8 and 5',
    allows: ({ ours, theirs, spec }) =>
      has(spec, 'usedNonce') && !theirs.ok && ours.code === 'permit2_invalid_nonce',
  },
  {
    name: 'a permit of another amount than the ceiling is named',
    by: 'schemes.md 1.1: the proxy refuses it as Permit2612AmountMismatch',
    allows: ({ ours, theirs, spec }) =>
      has(spec, 'permitAmount') && !theirs.ok && ours.code === 'permit2_2612_amount_mismatch',
  },
  {
    name: 'settle needs only the charge to be covered: what was served is paid',
    by: 'pricing.md 3, a charge is settled although the ceiling has gone',
    allows: ({ operation, ours, theirs, spec }) =>
      operation === 'settle' &&
      has(spec, 'tooMuch') &&
      !has(spec, 'nothing') &&
      ours.ok &&
      theirs.code === 'permit2_insufficient_balance',
  },
]

let shop: Shop
let reference: Reference
let wallets: Wallets
const usedNonces = new Map<string, Hex>()
const [ownRelayer, theirRelayer] = [account(0).address, account(9).address]
const stranger = privateKeyToAccount(`0x${'77'.repeat(32)}`)
const poor = privateKeyToAccount(`0x${'66'.repeat(32)}`)
const networkOf = (id: Id) => networkIn(shop, id)

beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        payTo: 'any',
        uptoWithoutKeys: true,
        verifyPerMinute: 1e6,
        settlePerMinute: 1e6,
      },
    }),
  })
  const urlOf = (id: Id) => shop.chains[id]?.url ?? ''
  reference = createReference(shop.config.networks, urlOf)
  wallets = await prepareWallets(shop)
  for (const { id } of shop.config.networks) {
    const nonce: Hex = `0x${'ab'.repeat(31)}07`
    const used = await makeBody(networkOf(id), { scheme: 'upto', nonce })
    expect((await post(`${shop.url}/settle`, used)).json).toMatchObject({ success: true })
    usedNonces.set(id, nonce)
  }
})
afterAll(() => shop?.stop())

async function payerOf(
  { network }: UptoSpec,
  payer: UptoSpec['payer'],
): Promise<[LocalAccount, Address]> {
  const own = (from: LocalAccount): [LocalAccount, Address] => [from, from.address]
  switch (payer) {
    case 'rich':
      return own(account(1).local())
    case 'poor':
      return own(poor)
    case 'unapproved':
      return own(account(3).local())
    case 'delegated':
      return own(account(4).local())
    case 'wallet':
    case 'refusing':
      return [account(1).local(), wallets.get(`${network} ${payer}`) ?? payee]
    case 'undeployed':
      return [account(1).local(), stranger.address]
    case 'fresh': {
      const fresh = privateKeyToAccount(generatePrivateKey())
      const [chain, { asset }] = [shop.chains[network], networkOf(network)]
      if (chain === undefined) throw new Error(`no ${network}`)
      const args = [fresh.address, 20_000n] as const
      const data = encodeFunctionData({ abi: erc20, functionName: 'mint', args })
      await execute(chain, [{ from: account(8).address, to: asset.address, data }])
      return own(fresh)
    }
  }
}

const other = account(8).address
const ceilingAtomic = 5_000n

async function bodyOf(operation: Operation, spec: UptoSpec, relayer: Address): Promise<Body> {
  const is = (fault: UptoFault) => has(spec, fault)
  const network = networkOf(spec.network)
  const isPermitted = spec.faults.some((fault) => fault.startsWith('permit'))
  // A permit that is settled replaces its payer's allowance, which others use.
  const isSpent = isPermitted && operation === 'settle'
  const [from, payer] = await payerOf(spec, isSpent ? 'fresh' : spec.payer)
  const amountAtomic = is('noCeiling') ? 0n : is('tooMuch') ? 90_000_000_000n : ceilingAtomic
  const facilitator = is('otherFacilitator') ? other : relayer
  const used = usedNonces.get(spec.network)
  const body = await makeBody(network, {
    scheme: 'upto',
    ...(is('eip3009') ? { method: 'eip3009' as const } : {}),
    from: is('wrongSigner') ? account(5).local() : from,
    payer,
    amountAtomic,
    facilitator,
    ...(is('otherSignedPayee') ? { to: other } : {}),
    ...(is('selfPaid') ? { to: payer } : {}),
    ...(is('expired') ? { validBefore: inSeconds(-60) } : {}),
    ...(is('almostExpired') ? { validBefore: inSeconds(3) } : {}),
    ...(is('longValid') ? { validBefore: inSeconds(86_400) } : {}),
    ...(is('notYet') ? { validAfter: inSeconds(120) } : {}),
    ...(is('otherSpender') ? { spender: other } : {}),
    ...(is('exactSpender') ? { spender: Permit.proxyAddress } : {}),
    ...(is('usedNonce') && used !== undefined ? { nonce: used } : {}),
    ...(is('otherToken') ? { domain: { verifyingContract: otherToken() } } : {}),
    signature: (text) => formOf(text, (fault) => is(fault), spec.payer === 'undeployed'),
    requirements: {
      ...(is('otherPayee') ? { payTo: other } : {}),
      ...(is('selfPaid') ? { payTo: payer } : {}),
      ...(is('otherAsset') ? { asset: otherToken() } : {}),
      ...(is('emptyAsset') ? { asset: '0x00000000000000000000000000000000000012A4' } : {}),
    },
    accepted: {
      ...(is('acceptedScheme') ? { scheme: 'exact' } : {}),
      ...(is('acceptedNetwork') ? { network: 'eip155:10' } : {}),
    },
    ...(isPermitted
      ? { extensions: { eip2612GasSponsoring: await permitOf(spec, from, amountAtomic) } }
      : {}),
  })
  return broken(charging(body, amountOf(operation, spec, amountAtomic)), is)
}

const otherToken = () => networkOf('eip155:84532').asset.address

/** The required amount: to verify the ceiling, to settle the charge. */
function amountOf(operation: Operation, spec: UptoSpec, ceiling: bigint): bigint {
  if (has(spec, 'nothing', 'noCeiling')) return 0n
  if (has(spec, 'less')) return ceilingAtomic - 1n
  if (has(spec, 'more')) return ceiling + 1n
  return operation === 'verify' ? ceiling : 1_234n
}

/** The first EIP-2612 permit of a payer. */
async function permitOf(spec: UptoSpec, from: LocalAccount, value: bigint) {
  const { asset, chainId } = networkOf(spec.network)
  const deadline = has(spec, 'permitDeadline') ? 1n : inSeconds(300)
  const amount = has(spec, 'permitAmount') ? value + 1n : value
  const owner = has(spec, 'permitOwner') ? other : from.address
  const spender = has(spec, 'permitSpender') ? other : Permit.permit2Address
  const signature = await from.signTypedData({
    domain: { ...asset.eip712, chainId, verifyingContract: asset.address },
    types: {
      Permit: [
        { name: 'owner', type: 'address' },
        { name: 'spender', type: 'address' },
        { name: 'value', type: 'uint256' },
        { name: 'nonce', type: 'uint256' },
        { name: 'deadline', type: 'uint256' },
      ],
    },
    primaryType: 'Permit',
    message: { owner, spender, value: amount, nonce: 0n, deadline },
  })
  const info = {
    ...{ from: owner, asset: has(spec, 'permitAsset') ? otherToken() : asset.address, spender },
    ...{ amount: String(amount), nonce: '0', deadline: String(deadline), signature },
    version: has(spec, 'permitFormat') ? 'one' : '1',
  }
  return { info, schema: {} }
}

/** Faults of the JSON itself. */
function broken(body: Body, is: (fault: UptoFault) => boolean): Body {
  const copy = structuredClone(body)
  const { payload } = copy.paymentPayload
  const signed = payload.permit2Authorization as
    | (Record<'permitted' | 'witness', Record<string, unknown>> & Record<string, unknown>)
    | undefined
  if (signed !== undefined) {
    const { permitted, witness } = signed
    if (is('hexValue')) permitted.amount = `0x${BigInt(String(permitted.amount)).toString(16)}`
    else if (is('zeroPadded')) permitted.amount = `00${permitted.amount}`
    if (is('hexNonce'))
      signed.nonce = `0x${BigInt(String(signed.nonce)).toString(16).padStart(64, '0')}`
    if (is('noFacilitator')) delete witness.facilitator
    if (is('noValidAfter')) delete witness.validAfter
    if (is('noSpender')) delete signed.spender
  }
  if (is('version3')) copy.paymentPayload.x402Version = 3
  if (is('otherScheme')) copy.paymentRequirements.scheme = 'exact'
  if (is('unknownNetwork')) copy.paymentRequirements.network = 'eip155:10'
  if (is('noSignature')) delete (payload as Record<string, unknown>).signature
  if (is('noAccepted')) delete (copy.paymentPayload as Record<string, unknown>).accepted
  return copy
}

const { compare, unused } = createComparison(
  { shop: () => shop, reference: () => reference },
  rules,
  async (operation, spec) => [
    await bodyOf(operation, spec, ownRelayer),
    await bodyOf(operation, spec, theirRelayer),
  ],
)

test('verify of upto equals the reference, except for the named rules', async () => {
  expect(rules.length).toBeLessThanOrEqual(11)
  const all = [...generatedUpto(), ...some(pairsOfUpto())]
  const { counts, unexplained } = await compare('verify', all)
  expect(unexplained).toEqual([])
  expect(counts.get('same')).toBeGreaterThan(all.length / 2)
})

test('settle of upto equals the reference, except for the named rules', async () => {
  const all = [...generatedUpto(), ...some(pairsOfUpto())]
  const { counts, unexplained } = await compare('settle', all)
  expect(unexplained).toEqual([])
  expect(counts.get('same')).toBeGreaterThan(all.length / 2)
})

test('every rule applies to at least one request of upto', () => {
  expect(unused()).toEqual([])
})
