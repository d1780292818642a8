import { afterAll, beforeAll, expect, test } from 'bun:test'
import type { Address, Hex, LocalAccount } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import type { Id } from '../../src/protocol/Network'
import { inSeconds } from '../harness/buyer'
import {
  createComparison,
  formOf,
  networkOf as networkIn,
  prepareWallets,
  type Rule,
  type Wallets,
} from '../harness/differential'
import { type Body, type Made, makeBody, post } from '../harness/facilitation'
import { type Fault, generated, pairs, paxos, type Spec } from '../harness/payment-specs'
import { createReference, type Reference } from '../harness/reference'
import { some } from '../harness/samples'
import { payee, type Shop, startShop } from '../harness/shop'

/**
 * The same requests to the reference facilitator and to ours, on the same chains. The results and
 * codes must be the same, except for the rules below. Each rule names what requires it.
 */

const rules: readonly Rule<Spec>[] = [
  {
    name: 'requests at which it throws, or should throw, are 400 with a code here',
    by: 'peers.md 4.1, last item; design.md 5',
    allows: ({ ours, theirs, spec }) =>
      (theirs.throws === true || spec.faults.includes('noSignature')) &&
      ours.status === 400 &&
      /^(invalid_payload|invalid_x402_version|unsupported_scheme|invalid_network|invalid_payment_requirements)$/.test(
        ours.code,
      ),
  },
  {
    name: 'amounts are decimal digits without sign, prefix or leading zeros',
    by: 'peers.md 3, attack 6',
    allows: ({ ours, spec }) =>
      spec.faults.some((fault) => fault === 'hexValue' || fault === 'zeroPadded') &&
      ours.status === 400 &&
      /^invalid_pay(load|ment_requirements)$/.test(ours.code),
  },
  {
    name: 'an asset that is not configured is refused before all else',
    by: 'peers.md 3, attack 7',
    allows: ({ ours, theirs }) => !theirs.ok && ours.code === 'asset_not_allowed',
  },
  {
    name: 'a payer cannot pay itself, our own accounts or contracts',
    by: 'design.md 5, last item',
    allows: ({ ours }) => ours.code === 'payee_not_allowed',
  },
  {
    name: 'v of 0 or 1 means 27 or 28',
    by: 'peers.md 3, attack 18',
    allows: ({ operation, ours, theirs, spec }) =>
      ours.ok &&
      (spec.faults.includes('lowV') || endsInZero(spec)) &&
      (operation === 'settle' || theirs.code.endsWith('simulation_failed')),
  },
  {
    name: 'a signature with a high s has no signer',
    by: 'peers.md 3, attack 18',
    allows: ({ ours, spec }) =>
      spec.faults.includes('highS') && ours.code === signatureCode(spec.method),
  },
  {
    name: 'a used Permit2 nonce is reported as used',
    by: 'peers.md 4.6; design.md 3.8',
    allows: ({ ours, theirs }) =>
      ours.code === 'permit2_invalid_nonce' &&
      /^permit2_(simulation_failed|insufficient_balance)$/.test(theirs.code),
  },
  {
    name: 'a used nonce counts where the token accepts it without a transfer',
    by: 'peers.md 1.9 and 3, attack 8',
    allows: ({ ours, theirs, spec }) =>
      spec.network === paxos && theirs.ok && ours.code === 'invalid_exact_evm_nonce_already_used',
  },
  {
    name: 'a version is compared with the signing domain, also for a token without version()',
    by: 'peers.md 1.9',
    allows: ({ ours, spec }) =>
      spec.network === paxos && ours.code === 'invalid_exact_evm_token_version_mismatch',
  },
  {
    name: 'a key signature of an account with code is accepted where the token accepts it',
    by: 'design.md 5 (EIP-7702 payers); peers.md 2.8',
    allows: ({ theirs, spec }) =>
      spec.payer === 'delegated' && theirs.code === signatureCode(spec.method),
  },
  {
    name: 'stored money is reported as spent, even after its expiry',
    by: 'design.md 3.3 and 5',
    allows: ({ ours, theirs, spec }) =>
      spec.faults.includes('usedNonce') &&
      ours.code === usedCode(spec.method) &&
      /_(expired|not_yet_valid|valid_before|valid_after)$/.test(theirs.code),
  },
  {
    name: 'settle simulates, so it reports the reason of verify',
    by: 'peers.md 2.9 and 2.10; design.md 3.5',
    allows: ({ operation, ours, theirs, spec }) =>
      operation === 'settle' &&
      !ours.ok &&
      !theirs.ok &&
      afterSending.test(theirs.code) &&
      ours.code !== signatureCode(spec.method),
  },
]

/** A byte less and a zero more: v of 0. */
function endsInZero({ faults }: Spec): boolean {
  return faults.includes('shortSignature') && faults.includes('longSignature')
}

/** Codes that the reference reports only when a transaction fails. */
const afterSending =
  /^invalid_exact_evm_(transaction_failed(:|$)|transfer_event_mismatch$|signature$)/

function usedCode(method: Spec['method']): string {
  return method === 'permit2' ? 'permit2_invalid_nonce' : 'invalid_exact_evm_nonce_already_used'
}

function signatureCode(method: Spec['method']): string {
  return method === 'permit2' ? 'invalid_permit2_signature' : 'invalid_exact_evm_signature'
}

let shop: Shop
let reference: Reference
const stranger = privateKeyToAccount(`0x${'77'.repeat(32)}`)
const poor = privateKeyToAccount(`0x${'66'.repeat(32)}`)
let wallets: Wallets
const usedNonces = new Map<string, Hex>()

beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        payTo: 'any',
        minAmountAtomic: 1n,
        verifyPerMinute: 1e6,
        settlePerMinute: 1e6,
      },
    }),
  })
  const urlOf = (id: Id) => shop.chains[id]?.url ?? ''
  reference = createReference(shop.config.networks, urlOf)
  wallets = await prepareWallets(shop)
  for (const { id } of shop.config.networks) {
    for (const method of ['eip3009', 'permit2'] as const) {
      const nonce: Hex = `0x${'ab'.repeat(31)}${method === 'permit2' ? '01' : '02'}`
      const used = await makeBody(networkOf(id), { method, nonce })
      const { json } = await post(`${shop.url}/settle`, used)
      expect(json).toMatchObject({ success: true })
      usedNonces.set(`${id} ${method}`, nonce)
    }
  }
})
afterAll(() => shop?.stop())

const networkOf = (id: Id) => networkIn(shop, id)

function payerOf({ payer, network }: Spec): { from: LocalAccount; address: Address } {
  const own = (from: LocalAccount) => ({ from, address: from.address })
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
      return {
        from: account(1).local(),
        address: wallets.get(`${network} ${payer}`) ?? payee,
      }
    case 'undeployed':
      return { from: account(1).local(), address: stranger.address }
  }
}

async function bodyOf(spec: Spec): Promise<Body> {
  const has = (fault: Fault) => spec.faults.includes(fault)
  const network = networkOf(spec.network)
  const { from, address } = payerOf(spec)
  const amountAtomic = has('tooMuch') ? 90_000_000_000n : 5_000n
  const other = networkOf('eip155:84532').asset.address
  const signature = (text: Hex) => formOf(text, has, spec.payer === 'undeployed')
  const requirements: NonNullable<Made['requirements']> = {
    ...(has('otherPayee') ? { payTo: account(8).address } : {}),
    ...(has('otherAsset') ? { asset: other } : {}),
    ...(has('emptyAsset') ? { asset: '0x00000000000000000000000000000000000012A4' } : {}),
    ...(has('overpaid') ? { amount: '4999' } : {}),
    ...(has('underpaid') ? { amount: '5001' } : {}),
    ...extraOf(spec),
  }
  const used = usedNonces.get(`${spec.network} ${spec.method}`)
  const body = await makeBody(network, {
    method: spec.method,
    from: has('wrongSigner') ? account(5).local() : from,
    payer: address,
    amountAtomic,
    ...(has('otherSignedPayee') ? { to: account(8).address } : {}),
    ...(has('selfPaid') ? { to: address, requirements: { payTo: address } } : {}),
    ...(has('expired') ? { validBefore: inSeconds(-60) } : {}),
    ...(has('almostExpired') ? { validBefore: inSeconds(3) } : {}),
    ...(has('longValid') ? { validBefore: inSeconds(86_400) } : {}),
    ...(has('notYet') ? { validAfter: inSeconds(120) } : {}),
    ...(has('otherSpender') ? { spender: account(8).address } : {}),
    ...(has('usedNonce') && used !== undefined ? { nonce: used } : {}),
    ...(has('otherToken') && spec.method === 'permit2'
      ? { domain: { verifyingContract: other } }
      : {}),
    ...signedDomain(spec),
    signature,
    requirements: has('selfPaid') ? { ...requirements, payTo: address } : requirements,
    accepted: {
      ...(has('acceptedScheme') ? { scheme: 'upto' } : {}),
      ...(has('acceptedNetwork') ? { network: 'eip155:10' } : {}),
    },
  })
  return broken(body, has)
}

function extraOf({ faults, network, method }: Spec): { extra?: Record<string, unknown> } {
  const { eip712 } = networkOf(network).asset
  const extra: Record<string, unknown> = { ...eip712 }
  if (method === 'permit2') extra.assetTransferMethod = 'permit2'
  if (faults.includes('noName')) delete extra.name
  if (faults.includes('otherName')) extra.name = 'Another Coin'
  if (faults.includes('otherVersion')) extra.version = '9'
  return { extra }
}

/** Normally the payer signs the required terms; options replace some of them. */
function signedDomain({ faults, method }: Spec): Pick<Made, 'domain'> {
  if (method === 'permit2') return {}
  const name = faults.includes('otherName') || faults.includes('signedOtherName')
  const version = faults.includes('otherVersion') || faults.includes('signedOtherVersion')
  if (!name && !version) return {}
  return {
    domain: { ...(name ? { name: 'Another Coin' } : {}), ...(version ? { version: '9' } : {}) },
  }
}

/** Faults of the JSON itself. */
function broken(body: Body, has: (fault: Fault) => boolean): Body {
  const copy = structuredClone(body)
  const { payload } = copy.paymentPayload
  const signed = (payload.authorization ?? payload.permit2Authorization) as Record<string, unknown>
  const permitted = signed.permitted as Record<string, unknown> | undefined
  const amounts = permitted ?? signed
  const member = permitted === undefined ? 'value' : 'amount'
  if (has('hexValue')) amounts[member] = `0x${BigInt(String(amounts[member])).toString(16)}`
  else if (has('zeroPadded')) amounts[member] = `00${amounts[member]}`
  if (has('version3')) copy.paymentPayload.x402Version = 3
  if (has('otherScheme')) copy.paymentRequirements.scheme = 'upto'
  if (has('unknownNetwork')) copy.paymentRequirements.network = 'eip155:10'
  if (has('noSignature')) delete (payload as Record<string, unknown>).signature
  if (has('noAccepted')) delete (copy.paymentPayload as Record<string, unknown>).accepted
  return copy
}

const { compare, unused } = createComparison(
  { shop: () => shop, reference: () => reference },
  rules,
  async (operation, spec) => {
    const body = await bodyOf(spec)
    // Each authorization can be settled by only one of the two.
    return [body, operation === 'settle' ? await bodyOf(spec) : body]
  },
)

test('verify equals the reference, except for the named rules', async () => {
  expect(rules.length).toBeLessThanOrEqual(12)
  const all = [...generated(), ...some(pairs())]
  const { counts, unexplained } = await compare('verify', all)
  expect(unexplained).toEqual([])
  expect(counts.get('same')).toBeGreaterThan(all.length / 2)
})

test('settle equals the reference, except for the named rules', async () => {
  const all = generated().slice(0, 230)
  const { counts, unexplained } = await compare('settle', all)
  expect(unexplained).toEqual([])
  expect(counts.get('same')).toBeGreaterThan(all.length / 2)
})

test('every rule applies to at least one request', () => {
  expect(unused()).toEqual([])
})
