import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Artifacts from '../../src/demo/contracts/artifacts'
import { type Asked, ask, settlementOf } from '../harness/buyer'
import { deploy } from '../harness/chains'
import {
  effects,
  mppPermit,
  mppUsdc,
  nothing,
  price,
  rewritten,
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
beforeEach(() => {
  target.upstream.answer = undefined
  target.usdc.tap.intercept = undefined
  target.usdg.tap.intercept = undefined
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const codeOf = async (response: Response): Promise<string> =>
  ((await response.json()) as { code: string }).code

/** Pays and expects the answer. */
async function buy(way: Way, path = 'a/get', init?: RequestInit): Promise<Record<string, string>> {
  const headers = await way.pay(await ask(at(path), init), buyer)
  const { result } = await effects(target, () => fetch(at(path), { ...init, headers }))
  expect([way.name, result.status]).toEqual([way.name, 200])
  return headers
}

/** Sends a credential and expects a refusal of the given status without any effect. */
async function refused(
  headers: Record<string, string>,
  path = 'a/get',
  init?: RequestInit,
): Promise<Response> {
  const { result, ...caused } = await effects(target, () => fetch(at(path), { ...init, headers }))
  const status = result.status
  expect({ status, ...caused, headers }).toEqual({
    ...nothing,
    headers,
    status: expect.any(Number),
  })
  expect([400, 402]).toContain(status)
  expect(result.headers.get('content-type')).toBe('application/problem+json')
  return result
}

describe('replay', () => {
  for (const way of ways) {
    test(`attack 1: the exact request again, ${way.name}`, async () => {
      const headers = await buy(way)
      const again = await refused(headers)
      expect(again.status).toBe(402)
      const reason =
        way.method === 'permit2' ? 'permit2_invalid_nonce' : 'invalid_exact_evm_nonce_already_used'
      if (way.protocol === 'x402') expect(settlementOf(again).errorReason).toBe(reason)
      else expect(await again.json()).toMatchObject({ code: 'invalid-challenge', reason })
    })

    test(`attack 2: one credential twenty times at once, ${way.name}`, async () => {
      const headers = await way.pay(await ask(at('a/get')), buyer)
      const { result, ...caused } = await effects(target, () =>
        Promise.all(Array.from({ length: 20 }, () => fetch(at('a/get'), { headers }))),
      )
      const statuses = result.map(({ status }) => status).sort()
      expect(statuses[0]).toBe(200)
      expect(statuses.slice(1).every((status) => status === 409 || status === 402)).toBe(true)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
      expect(target.payments().filter(({ delivery }) => delivery === 'delivering')).toEqual([])
    })
  }

  test('attack 2: one credential for two concurrent requests', async () => {
    for (const way of [x402Usdc, x402Permit]) {
      const headers = await way.pay(await ask(at('a/get')), buyer)
      const { result, ...caused } = await effects(target, () =>
        Promise.all(
          ['a/get', 'b/get', 'a/both', 'a/get?x=2'].map((p) => fetch(at(p), { headers })),
        ),
      )
      expect(result.filter(({ status }) => status === 200)).toHaveLength(1)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
    }
  })
})

describe('what a payment is for', () => {
  const others: [string, string, RequestInit?][] = [
    ['another merchant of the same price and payee', 'b/get'],
    ['another route', 'a/both'],
    ['another query', 'a/get?x=1'],
    ['another tail', 'a/get/more'],
    ['another method', 'a/get', { method: 'HEAD' }],
  ]
  for (const way of ways) {
    test(`attack 3: spent at A, shown at B, ${way.name}`, async () => {
      const headers = await buy(way)
      for (const [what, path, init] of others) {
        const { result, ...caused } = await effects(target, () =>
          fetch(at(path), { ...init, headers }),
        )
        expect({ what, status: result.status, ...caused }).toEqual({
          what,
          status: 402,
          ...nothing,
        })
      }
      const posted = await buy(way, 'a/both', { method: 'POST', body: '{"a":1}' })
      for (const init of [{ method: 'POST', body: '{"a":2}' }, { method: 'POST' }, {}])
        await refused(posted, 'a/both', init)
    })
  }

  test('attack 3: an unspent MPP credential pays neither for another merchant or route nor for a body', async () => {
    for (const way of [mppUsdc, mppPermit]) {
      const headers = await way.pay(await ask(at('a/both')), buyer)
      for (const [path, init] of [
        ['b/both', {}],
        ['a/get', {}],
        ['a/both', { method: 'POST', body: '{}' }],
        ['a/post', { method: 'POST' }],
      ] as const) {
        const response = await refused(headers, path, init)
        expect(await codeOf(response)).toBe('invalid-challenge')
      }
      expect((await fetch(at('a/both'), { headers })).status).toBe(200)
    }
  })
})

describe('what is offered', () => {
  const attacker = account(4).address
  const changes = (asked: Asked, network: string): Record<string, unknown>[] => {
    const accept = asked.required.accepts.find((each) => each.network === network)
    return [
      ...['4999', '5001', '1', '0', '05000', '0x1388', 4999].map((amount) => ({ amount })),
      { payTo: attacker },
      { asset: attacker },
      { asset: undefined },
      { scheme: 'upto' },
      { scheme: undefined },
      { network: network === 'eip155:8453' ? 'eip155:4663' : 'eip155:8453' },
      { network: 'eip155:1' },
      { network: 8453 },
      { maxTimeoutSeconds: 301 },
      { maxTimeoutSeconds: '300' },
      { extra: undefined },
      { extra: [] },
      { extra: { ...accept?.extra, name: 'USDC' } },
      { extra: { ...accept?.extra, version: '3' } },
      { extra: { ...accept?.extra, assetTransferMethod: 'other' } },
      { extra: { ...accept?.extra, spender: attacker } },
      { extra: { ...accept?.extra, paymentFlow: 'authorization' } },
      { extra: { ...accept?.extra, more: 'x' } },
      { more: 'x' },
    ]
  }
  for (const way of [x402Usdc, x402Permit, x402Usdg]) {
    test(`attack 5: accepted with any member changed, ${way.name}`, async () => {
      const asked = await ask(at('a/get'))
      const headers = await way.pay(asked, buyer)
      for (const change of changes(asked, way.side === 'usdc' ? 'eip155:8453' : 'eip155:4663')) {
        const paths = Object.entries(change).map(([name, value]) => [`accepted.${name}`, value])
        const response = await refused(tampered(headers, Object.fromEntries(paths)))
        expect(settlementOf(response)).toMatchObject({ success: false, transaction: '' })
      }
      for (const accepted of ['x', [], 5, true, {}]) await refused(tampered(headers, { accepted }))
      expect((await fetch(at('a/get'), { headers })).status).toBe(200)
    })

    test(`attack 5: signed and accepted by the buyer's own terms, ${way.name}`, async () => {
      const asked = await ask(at('a/get'))
      const accepts = asked.required.accepts
      for (const [terms, options] of [
        [{ amount: '1' }, { value: 1n }],
        [{ payTo: buyer.address }, { to: buyer.address }],
        [{ payTo: attacker }, { to: attacker }],
      ] as const) {
        const own = accepts.map((accept) => ({ ...accept, ...terms }))
        const greedy = { ...asked, required: { ...asked.required, accepts: own } }
        const headers = await way.pay(greedy, buyer, options)
        await refused(headers)
        await refused(tampered(headers, { accepted: undefined }))
      }
    })
  }

  const spellings: unknown[] = [
    '0x1388',
    '5e3',
    '05000',
    '+5000',
    '-5000',
    '5000.0',
    '5_000',
    ' 5000',
    '5000 ',
    '5000n',
    '\u0665\u0660\u0660\u0660',
    '',
    '0',
    String(2n ** 256n),
    String(2n ** 256n + price),
    5000.5,
    -5000,
    2 ** 53,
    1e300,
    true,
    null,
    [],
    ['5000'],
    {},
  ]
  const amountPaths: [Way, string[]][] = [
    [mppUsdc, ['payload.value']],
    [mppPermit, ['payload.permit.permitted.0.amount', 'payload.transferDetails.0.requestedAmount']],
    [x402Usdc, ['payload.authorization.value', 'accepted.amount']],
    [x402Permit, ['payload.permit2Authorization.permitted.amount', 'accepted.amount']],
  ]
  for (const [way, paths] of amountPaths) {
    test(`attack 6: amounts written in other ways, ${way.name}`, async () => {
      const headers = await way.pay(await ask(at('a/get')), buyer)
      for (const path of paths)
        for (const value of spellings) await refused(tampered(headers, { [path]: value }))
      for (const value of ['NaN', 'Infinity', '0x1388', '05000', '5000n', '-']) {
        const marked = tampered(headers, { [paths[0] ?? '']: '<here>' })
        await refused(rewritten(marked, (text) => text.replace('"<here>"', value)))
      }
      expect((await fetch(at('a/get'), { headers })).status).toBe(200)
    })
  }

  for (const way of ways) {
    test(`attack 6: one atomic unit more or less than the price, ${way.name}`, async () => {
      for (const value of [price - 1n, price + 1n, 0n, 1n, 2n ** 256n - 1n]) {
        const headers = await way.pay(await ask(at('a/get')), buyer, { value })
        await refused(headers)
        if (way.protocol === 'x402') await refused(tampered(headers, { accepted: undefined }))
      }
    })
  }

  test('attack 7: a token with the same name, an account without code and the token of another chain', async () => {
    const lookalike = await deploy(target.usdc.chain, Artifacts.Stablecoin)
    const mint = parseAbi(['function mint(address to, uint256 value)'])
    const data = encodeFunctionData({ abi: mint, args: [buyer.address, price] })
    await execute(target.usdc.chain, [{ from: account(9).address, to: lookalike, data }])
    const asked = await ask(at('a/get'))
    for (const way of [x402Usdc, x402Permit, x402Usdg, mppUsdc]) {
      const { tap } = target[way.side]
      const otherToken = target[way.side === 'usdc' ? 'usdg' : 'usdc'].token
      tap.calls.length = 0
      for (const asset of [lookalike, account(6).address, otherToken, zero]) {
        const headers = await way.pay(withAsset(asked, asset), buyer)
        await refused(headers)
        if (way.protocol === 'x402') await refused(tampered(headers, { accepted: undefined }))
        // Zeros are padding in every call.
        if (asset === zero) continue
        expect(JSON.stringify(tap.calls).toLowerCase()).not.toContain(asset.slice(2).toLowerCase())
      }
    }
  })

  for (const [what, code] of [
    ['reports success without a transfer', '0x600160005260206000f3'],
    ['disappears', '0x'],
  ] as const) {
    test(`attack 7: a token that ${what} between simulation and settlement`, async () => {
      const { chain, tap, token } = target.usdg
      const real = (await chain.rpc('eth_getCode', [token, 'latest'])) as Hex
      const headers = await x402Usdg.pay(await ask(at('a/get')), buyer)
      tap.intercept = async ({ method }, forward) => {
        if (!method.startsWith('eth_sendRawTransaction')) return undefined
        tap.intercept = undefined
        await chain.rpc('anvil_setCode', [token, code])
        const response = await forward()
        await response.clone().arrayBuffer()
        await chain.rpc('anvil_setCode', [token, real])
        return response
      }
      const sent = target.upstream.requests.length
      const response = await fetch(at('a/get'), { headers })
      expect(response.status).toBe(503)
      expect(await codeOf(response)).toBe('settlement-reverted')
      expect(target.upstream.requests.length).toBe(sent)
      // Nothing was paid and the authorization is unused, so it pays later, once.
      const { result, ...caused } = await effects(target, () => fetch(at('a/get'), { headers }))
      expect([result.status, caused.forwarded, caused.paidAtomic]).toEqual([200, 1, price])
    })
  }
})

const zero: Address = '0x0000000000000000000000000000000000000000'

/** Terms of a malicious 402: the same terms in another asset. */
function withAsset(asked: Asked, asset: Address): Asked {
  const accepts = asked.required.accepts.map((accept) => ({ ...accept, asset }))
  const challenges = asked.challenges.map((challenge) => {
    const request = { ...challenge.request, currency: asset }
    const encoded = Buffer.from(JSON.stringify(request)).toString('base64url')
    return { ...challenge, request, raw: { ...challenge.raw, request: encoded } }
  })
  return { ...asked, challenges, required: { ...asked.required, accepts } }
}
