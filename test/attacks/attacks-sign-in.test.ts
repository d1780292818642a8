import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import {
  concat,
  encodeAbiParameters,
  encodeFunctionData,
  getAddress,
  type Hex,
  keccak256,
  parseAbiParameters,
  stringToBytes,
} from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { ask } from '../harness/buyer'
import { deploy } from '../harness/chains'
import { base, type Club, robinhood, setCode, startClub } from '../harness/club'
import { close, exchange, request } from '../harness/raw'
import { buy, sign } from '../harness/shop'
import { signInHeader } from '../harness/sign-in'
import { signIn, signInOf, textOf } from '../harness/siwe'
import { freshWallet, setTokens } from '../harness/sponsor'
import * as Wallets from '../harness/wallets'
import { until } from '../harness/world'

/** Attacks on the sign-in with a wallet: each is refused, and nothing is counted or forwarded. */

const buyer = account(1).local()
const thief = account(2).local()

let club: Club
beforeAll(async () => {
  club = await startClub()
  await club.buyPass()
})
afterAll(() => club?.shop.stop())
beforeEach(() => {
  club.shop.upstream.script = undefined
  for (const tap of Object.values(club.shop.taps)) tap.intercept = undefined
})

const unused = { code: 'not-entitled', reason: 'no_entitlement' }
const minute = 60_000
/** It is of another request: by its URI, or by its nonce. */
const bound = /^invalid_siwx_(uri_mismatch|nonce)$/
const otherChain = /^invalid_siwx_(unsupported_chain|chain_id)$/

describe('the twelve attacks', () => {
  test('attack 1: a sign-in is used once: in sequence, concurrently, and after a restart', async () => {
    const first = await club.signIn(buyer)
    await club.served(first)
    await club.refused(first, { reason: 'invalid_siwx_nonce' })
    const second = await club.signIn(buyer)
    const before = club.books()
    const all = await Promise.all(Array.from({ length: 10 }, () => club.send('/data', second)))
    expect(all.map(({ status }) => status).sort()).toEqual([200, ...Array(9).fill(402)])
    const { forwarded = 0, uses = 0, attempts = 0, nonces = 0 } = before
    const once = { forwarded: forwarded + 1, uses: uses + 1, attempts: attempts + 1 }
    expect(club.books()).toEqual({ ...before, ...once, nonces: nonces + 1 })
    const unspent = await club.signIn(buyer)
    await club.shop.restart()
    for (const headers of [first, second])
      await club.refused(headers, { reason: 'invalid_siwx_nonce' })
    await club.served(unspent)
  })

  test('attack 1: a sign-in is refused while the upstream works for it', async () => {
    const headers = await club.signIn(buyer)
    const reached = Promise.withResolvers<() => void>()
    club.shop.upstream.script = (_, reply) => reached.resolve(() => reply.send(200))
    const running = club.send('/data', headers)
    const answer = await reached.promise
    await club.refused(headers, { reason: 'invalid_siwx_nonce' })
    answer()
    expect((await running).status).toBe(200)
  })

  test('attack 2: of another route, of another merchant, and of the pass itself', async () => {
    await club.buyPass({}, '/other')
    const headers = await club.signIn(buyer)
    for (const path of ['/other', 'rival/data', '/data/x'])
      await club.refused(headers, { path, reason: bound })
    // These give nothing, and know no sign-in.
    for (const path of ['/data/pass', '/plain']) {
      const before = club.books()
      const { status } = await club.send(path, headers)
      expect([path, status, club.books()]).toEqual([path, 402, before])
    }
    // With the URI of the attacked route, the nonce is that of another one.
    for (const path of ['/other', 'rival/data', '/data/x', '/data?x=1', '/data?'])
      await club.refused(await club.signIn(buyer, '/data', { signed: { uri: uriOf(path) } }), {
        path,
        reason: 'invalid_siwx_nonce',
      })
    await club.served(headers)
  })

  test('attack 2: of another query, method, and encoding of the path', async () => {
    const headers = await club.signIn(buyer, '/data?a=1&b=2')
    for (const path of ['/data', '/data?', '/data?b=2&a=1', '/data?a=1&b=2&', '/data?a=%31&b=2'])
      await club.refused(headers, { path, reason: bound })
    const statusOf = async (path: string) => {
      const lines = [`Sign-In-With-X: ${Object.values(headers)[0]}`, close]
      return (await exchange(club.shop.url, request(`/m/club${path}`, lines)))[0]?.status
    }
    const before = club.books()
    const others = ['//data?a=1&b=2', '/data%2f?a=1&b=2', '/data?a=1&b=%32', '/DATA?a=1&b=2']
    for (const path of others) expect([400, 402, 404]).toContain((await statusOf(path)) ?? 0)
    expect(club.books()).toEqual(before)
    const post = { method: 'POST', body: '{}', headers: { 'content-type': 'application/json' } }
    await club.refused(headers, {
      path: '/data?a=1&b=2',
      init: post,
      reason: 'invalid_siwx_nonce',
    })
    // The same path in another encoding is the same request.
    expect(await statusOf('/%64ata?a=1&b=2')).toBe(200)
    await club.refused(headers, { path: '/data?a=1&b=2', reason: 'invalid_siwx_nonce' })
  })

  test('attack 2: of GET for HEAD, and of HEAD for GET', async () => {
    const before = club.books()
    const asked = await ask(club.at('/data'))
    const get = await signIn(asked, buyer)
    const head = await club.send('/data', get, { method: 'HEAD' })
    // HEAD comes with GET and costs the same: it may use it, and then it is used.
    if (head.status === 200) await club.refused(get, { reason: 'invalid_siwx_nonce' })
    else {
      expect([head.status, club.books()]).toEqual([402, before])
      await club.served(get)
    }
  })

  test('attack 3: with another body, with none, and with one for none', async () => {
    const post = (body?: string) => ({
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      ...(body !== undefined && { body }),
    })
    const init = post('{"symbol":"A"}')
    const headers = await club.signIn(buyer, '/data', { init })
    for (const body of ['{"symbol":"B"}', '{"symbol": "A"}', '{"symbol":"A"}\n', undefined])
      await club.refused(headers, { init: post(body), reason: 'invalid_siwx_nonce' })
    await club.served(headers, '/data', init)
    const bare = await club.signIn(buyer, '/data', { init: post() })
    await club.refused(bare, { init: post('{}'), reason: 'invalid_siwx_nonce' })
    // A body that was not read offers no sign-in, so that it binds the body always.
    const long = post(`"${'x'.repeat(1024 * 1024)}"`)
    expect(signInOf(await ask(club.at('/data'), long))).toBeUndefined()
  })

  test('attack 4: for another domain, also one that looks the same', async () => {
    const { host } = new URL(club.shop.config.service.baseUrl)
    const domains = [
      'evil.example',
      '127.0.0.1:4020',
      'localhost',
      'localhost:4021',
      `${host}.`,
      'localhost.:4020',
      host.toUpperCase(),
      ` ${host}`,
      `${host}\n`,
      `evil.example@${host}`,
      `${host}@evil.example`,
      `http://${host}`,
      `${host}/`,
      'l\u043ecalhost:4020',
      'xn--lcalhost-3fg:4020',
      'localhost\u200b:4020',
      '\uff4cocalhost:4020',
      '',
      'x'.repeat(4_000),
    ]
    for (const domain of domains) {
      const headers = await club.signIn(buyer, '/data', { signed: { domain } })
      const { code, reason } = await club.refusedAsInput(domain.slice(0, 40), headers)
      expect([domain, reason ?? code]).toEqual([
        domain,
        expect.stringMatching(/^(invalid_siwx_domain_mismatch|bad-request)$/),
      ])
    }
    // Signed for another domain, and sent as ours.
    const forged = await club.signIn(buyer, '/data', {
      signed: { domain: 'evil.example' },
      sent: { domain: host },
    })
    await club.refused(forged, { reason: 'invalid_siwx_signature' })
    for (const uri of [
      'http://evil.example/m/club/data',
      `${uriOf('/data')}#x`,
      uriOf('/data').replace('http:', 'https:'),
      uriOf('/data').replace('http:', 'HTTP:'),
      uriOf('/data').replace('localhost', 'localhost.'),
      '/m/club/data',
      'not a url',
      '',
    ]) {
      const headers = await club.signIn(buyer, '/data', { signed: { uri } })
      const { code, reason } = await club.refusedAsInput(uri, headers)
      expect([uri, reason ?? code]).toEqual([
        uri,
        expect.stringMatching(/^(invalid_siwx_uri_mismatch|bad-request)$/),
      ])
    }
  })

  test('attack 5: for a chain that the item does not name, or that is written in another way', async () => {
    for (const chainId of ['eip155:1', 'eip155:84532', 'solana:mainnet', 'eip155:99999999999999'])
      await club.refused(await club.signIn(buyer, '/data', { signed: { chainId } }), {
        reason: otherChain,
      })
    const odd = ['EIP155:8453', 'eip155:08453', 'eip155:8453 ', 'eip155:0x2105', 'eip155:', '8453']
    for (const chainId of odd) {
      const headers = await club.signIn(buyer, '/data', { signed: { chainId } })
      const { reason } = await club.refusedAsInput(chainId, headers)
      expect([chainId, reason]).toEqual([chainId, expect.stringMatching(otherChain)])
    }
    // Signed for one chain of the item, and sent for the other.
    const crossed = await club.signIn(buyer, '/data', {
      signed: { chainId: base },
      sent: { chainId: robinhood },
    })
    await club.refused(crossed, { reason: 'invalid_siwx_signature' })
    // The signature of a key counts on each chain of the item.
    for (const chainId of [base, robinhood])
      await club.served(await club.signIn(buyer, '/data', { signed: { chainId } }))
  })

  test('attack 5: a contract that accepts it on another chain than that of the payment', async () => {
    const victim = await club.wallet()
    await club.buyPass({ signer: victim })
    const code = Wallets.SmartWallet.deployedBytecode
    const owner = BigInt(thief.address)
    await setCode(club.chain(robinhood), victim.address, code, owner)
    const own = { address: victim.address, chainId: robinhood }
    await club.refused(await club.signIn(thief, '/data', { signed: own }), unused)
    await club.refused(await club.signIn(thief, '/data', { signed: { ...own, chainId: base } }), {
      reason: 'invalid_siwx_signature',
    })
    await club.served(await club.signIn(victim, '/data', { signed: { chainId: robinhood } }))
  })

  test('attack 6: too late, by the clock and by a time that is signed', async () => {
    const headers = await club.signIn(buyer)
    club.shop.advance(5 * minute + 1_000)
    await club.refused(headers, { reason: 'invalid_siwx_issued_at_too_old' })
    club.shop.advance(-5 * minute - 1_000)
    await club.served(headers)
    const early = new Date(Date.now() - 10 * minute).toISOString()
    await club.refused(await club.signIn(buyer, '/data', { signed: { issuedAt: early } }), {
      reason: 'invalid_siwx_issued_at_too_old',
    })
    await club.refused(await club.signIn(buyer, '/data', { signed: { expirationTime: early } }), {
      reason: 'invalid_siwx_expired',
    })
    // A new time for the nonce of an old 402.
    const asked = await ask(club.at('/data'))
    club.shop.advance(5 * minute + 1_000)
    const issuedAt = new Date(club.shop.now()).toISOString()
    const expirationTime = new Date(club.shop.now() + minute).toISOString()
    await club.refused(await signIn(asked, buyer, { signed: { issuedAt, expirationTime } }), {
      reason: 'invalid_siwx_nonce',
    })
    club.shop.advance(-5 * minute - 1_000)
  })

  test('attack 7: too early', async () => {
    const later = new Date(Date.now() + 5 * minute).toISOString()
    await club.refused(await club.signIn(buyer, '/data', { signed: { issuedAt: later } }), {
      reason: 'invalid_siwx_issued_at_in_future',
    })
    await club.refused(await club.signIn(buyer, '/data', { signed: { notBefore: later } }), {
      reason: 'invalid_siwx_not_yet_valid',
    })
    for (const issuedAt of ['', 'now', '2026-13-45T00:00:00Z', '1e400', '-1']) {
      const headers = await club.signIn(buyer, '/data', { signed: { issuedAt } })
      const { code, reason } = await club.refusedAsInput(issuedAt, headers)
      expect([issuedAt, reason ?? code]).toEqual([
        issuedAt,
        expect.stringMatching(/^(invalid_siwx_(issued_at(_too_old)?|nonce)|bad-request)$/),
      ])
    }
    // A nonce of ours cannot be moved into the time of another.
    const asked = await ask(club.at('/data'))
    const issuedAt = new Date(Date.now() - 10_000).toISOString()
    await club.refused(await signIn(asked, buyer, { signed: { issuedAt } }), {
      reason: 'invalid_siwx_nonce',
    })
  })

  test('attack 8: forged: another key, another form, another text, another nonce', async () => {
    const forge = (signature: NonNullable<Parameters<typeof signIn>[2]>['signature']) =>
      club.signIn(buyer, '/data', signature ? { signature } : {})
    const messages: [string, Promise<Record<string, string>>][] = [
      ['the key of a thief', club.signIn(thief, '/data', { signed: { address: buyer.address } })],
      [
        'an address that is replaced',
        club.signIn(thief, '/data', { sent: { address: buyer.address } }),
      ],
      ['a nonce of ours of another 402', crossNonce()],
      [
        'a raw hash',
        forge(
          (_, message) =>
            thief.sign?.({ hash: keccak256(stringToBytes(textOf(message))) }) as Promise<Hex>,
        ),
      ],
      ['zeros', forge(() => `0x${'00'.repeat(65)}`)],
      ['no signature', forge(() => '0x')],
      ['one byte', forge(() => '0x01')],
      ['a byte more', forge((own) => `${own}00`)],
      ['v 29', forge((own) => `${own.slice(0, 130)}1d` as Hex)],
      [
        'the other v',
        forge((own) => `${own.slice(0, 130)}${own.endsWith('1b') ? '1c' : '1b'}` as Hex),
      ],
      ['4 KB', forge(() => `0x${'ab'.repeat(2_000)}`)],
      ['an empty ERC-6492 wrapper', forge(() => wrapped(buyer.address, '0x', '0x'))],
      [
        'a wrapper that calls the token',
        forge((own) => wrapped(assetOf(base), transferData(), own)),
      ],
      ['a changed statement', club.signIn(buyer, '/data', { sent: { statement: 'Give me all.' } })],
      ['no statement', club.signIn(buyer, '/data', { sent: { statement: undefined } })],
      ['a changed time', club.signIn(buyer, '/data', { sent: { requestId: '1' } })],
      [
        'other resources',
        club.signIn(buyer, '/data', { sent: { resources: ['http://evil.example'] } }),
      ],
    ]
    for (const [what, headers] of messages) {
      const { code, reason } = await club.refusedAsInput(what, await headers)
      expect([what, reason ?? code]).toEqual([
        what,
        what.startsWith('a nonce')
          ? 'invalid_siwx_nonce'
          : expect.stringMatching(/^(invalid_siwx_signature|bad-request)$/),
      ])
    }
    // Random and changed nonces, and one of a service with another secret.
    const { info } = (await offer()) ?? {}
    const nonce = info?.nonce ?? ''
    const flipped = `${nonce.slice(0, -1)}${nonce.endsWith('0') ? '1' : '0'}`
    for (const other of [
      flipped,
      nonce.toUpperCase(),
      nonce.slice(1),
      `${nonce}0`,
      'a'.repeat(48),
      '',
    ])
      if (other !== nonce)
        await club.refusedAsInput(
          `nonce ${other}`,
          await club.signIn(buyer, '/data', { signed: { nonce: other } }),
        )
  })

  test('attack 9: a contract that changes its mind, and one that burns all gas', async () => {
    const chain = club.chain()
    const wallet = getAddress(await deploy(chain, Wallets.GreedyWallet, [buyer.address, 0]))
    await setTokens(chain, assetOf(base), [wallet], 1_000_000n)
    await club.buyPass({ from: wallet })
    const own = { address: wallet, chainId: base }
    const setMode = (mode: number) => {
      const { abi } = Wallets.GreedyWallet
      const data = encodeFunctionData({ abi, functionName: 'setMode', args: [mode] })
      return execute(chain, [{ from: account(9).address, to: wallet, data }])
    }
    await club.served(await club.signIn(buyer, '/data', { signed: own }))
    const early = await club.signIn(buyer, '/data', { signed: own })
    // Refuses now, also what it has accepted for others before: nothing is remembered.
    await setMode(3)
    await club.refused(early, { reason: 'invalid_siwx_signature' })
    await setMode(1)
    await club.refused(await club.signIn(buyer, '/data', { signed: own }), {
      reason: 'invalid_siwx_signature',
    })
    await setMode(0)
    await club.served(await club.signIn(buyer, '/data', { signed: own }))
    await club.refused(await club.signIn(thief, '/data', { signed: own }), {
      reason: 'invalid_siwx_signature',
    })
    // While no node answers, nothing is accepted and nothing refused for good.
    const { [base]: tap } = club.shop.taps
    if (tap)
      tap.intercept = ({ method }) =>
        method === 'eth_call' ? { error: { code: -32005, message: 'busy' } } : undefined
    await club.refused(await club.signIn(buyer, '/data', { signed: own }), {
      status: 503,
      code: 'not-ready',
    })
  })

  test('attack 10: a merchant never sees a sign-in, and cannot use one that it got', async () => {
    const headers = await club.signIn(buyer)
    let inside: Response | undefined
    club.shop.upstream.script = async (_, reply) => {
      inside = await club.send('/data', headers)
      // Names of ours in an answer of the upstream promise nothing.
      const claimed = { 'Payment-Entitlement': 'kind=pass, remaining=9', 'Payment-Redeem': 'x' }
      reply.send(200, '{}', { 'content-type': 'application/json', ...claimed })
    }
    const response = await club.served(headers)
    expect(inside?.status).toBe(402)
    expect(response.headers.get('payment-entitlement')).not.toContain('remaining=9')
    expect(response.headers.get('payment-redeem')).not.toBe('x')
    const seen = JSON.stringify(club.shop.upstream.requests)
    expect(seen).not.toContain(Object.values(headers)[0] ?? '')
    expect(seen.toLowerCase()).not.toContain('sign-in-with-x')
    expect(club.shop.logged.join('\n')).not.toContain(Object.values(headers)[0] ?? '')
    club.shop.upstream.script = undefined
    const plain = await buy(club.at('/plain'), { scheme: 'x402-eip3009' }, await club.signIn(buyer))
    expect(plain.status).toBe(200)
    expect(JSON.stringify(club.shop.upstream.requests).toLowerCase()).not.toContain('sign-in')
    // A server of the merchant asks us for the 402, and shows it as its own.
    const relayed = await club.signIn(buyer, '/data', { signed: { domain: 'merchant.example' } })
    await club.refused(relayed, { reason: 'invalid_siwx_domain_mismatch' })
  })

  test('attack 12: of a cheaper price and of other terms, before and after a reload', async () => {
    const cheap = await club.signIn(buyer)
    const edits: ((text: string) => string)[] = [
      (text) => text.replaceAll('price = "0.005"\npass', 'price = "0.006"\npass'),
      (text) => text.replaceAll('requests = 500', 'requests = 501'),
    ]
    for (const edit of edits) {
      expect(await club.shop.app.reload(club.shop.edited(edit))).toEqual([])
      await club.refused(cheap, { reason: 'invalid_siwx_nonce' })
      const dear = await club.signIn(buyer)
      expect(await club.shop.app.reload(club.shop.config)).toEqual([])
      await club.refused(dear, { reason: 'invalid_siwx_nonce' })
    }
    await club.served(cheap)
  })
})

describe('what is not a sign-in', () => {
  const post = (value: string) => ({ 'sign-in-with-x': value })
  const encode = (text: string | Uint8Array) => Buffer.from(text).toString('base64')
  test('attack: values of all kinds get a 4xx and count nothing', async () => {
    const values: [string, string][] = [
      ['nothing', ''],
      ['one character', 'A'],
      ['no base64', '!!!!'],
      ['the JSON itself', '{"domain":"localhost:4020"}'],
      ['a comma', 'e30=,e30='],
      ['no object', encode('[]')],
      ['null', encode('null')],
      ['a number', encode('5')],
      ['an empty object', encode('{}')],
      ['a cut object', encode('{"domain":')],
      ['two objects', encode('{}{}')],
      ['half a character', encode(Uint8Array.of(0x7b, 0x22, 0xc3, 0x22, 0x3a, 0x31, 0x7d))],
      ['a lone surrogate', encode('{"domain":"\\ud800"}')],
      ['a NUL', encode('{"a":"\\u0000"}\0')],
      ['5,000 levels', encode(`${'['.repeat(5000)}${']'.repeat(5000)}`)],
      ['more than 8 KB', encode(`{"statement":"${'x'.repeat(8_192)}"}`)],
      ['a prototype', encode('{"__proto__":{"domain":"localhost:4020"},"constructor":1}')],
    ]
    for (const [what, value] of values) await club.refusedAsInput(what, post(value))
  })

  test('attack: each member of a good message as another value', async () => {
    const asked = await ask(club.at('/data'))
    const good = await signIn(asked, buyer)
    const message = JSON.parse(Buffer.from(good['sign-in-with-x'] ?? '', 'base64').toString())
    const wrong: unknown[] = [null, true, 5, -1, 1e21, '', 'x', [], {}, ['x'], 'x'.repeat(3_000)]
    const line = '\n\nURI: http://evil.example'
    for (const name of Object.keys(message))
      for (const value of [...wrong, `${message[name]}${line}`, `\u0000${message[name]}`])
        await club.refusedAsInput(`${name}: ${JSON.stringify(value)}`.slice(0, 60), {
          ...signInHeader({ ...message, [name]: value }),
        })
    for (const name of [
      'domain',
      'address',
      'uri',
      'version',
      'chainId',
      'nonce',
      'issuedAt',
      'signature',
    ])
      await club.refusedAsInput(`without ${name}`, signInHeader({ ...message, [name]: undefined }))
    await club.served(good)
  })

  test('attack: keys twice, two headers, and a header of 100 kB', async () => {
    const good = await club.signIn(buyer)
    const value = Object.values(good)[0] ?? ''
    const text = Buffer.from(value, 'base64').toString()
    const twice = text.replace('{', `{"address":"${thief.address}","chainId":"eip155:1",`)
    const other = text.replace(/}$/, `,"address":"${thief.address}"}`)
    await club.refusedAsInput('the last address is that of a thief', post(encode(other)))
    const before = club.books()
    const two = [`Sign-In-With-X: ${value}`, `sign-in-with-x: ${value}`, close]
    const [answer] = await exchange(club.shop.url, request('/m/club/data', two))
    expect([400, 402]).toContain(answer?.status ?? 0)
    const long = [`Sign-In-With-X: ${'A'.repeat(100_000)}`, close]
    const [tooLong] = await exchange(club.shop.url, request('/m/club/data', long))
    expect([400, 413, 431]).toContain(tooLong?.status ?? 0)
    expect(club.books()).toEqual(before)
    // The first of two equal keys is not read: it is the message of the last ones, used once.
    const response = await club.send('/data', post(encode(twice)))
    expect([200, 400]).toContain(response.status)
    if (response.status === 200) await club.refused(good, { reason: 'invalid_siwx_nonce' })
  })

  test('attack: a sign-in beside a payment authorizes nothing by itself', async () => {
    const headers = await club.signIn(buyer)
    const paying = await sign(club.at('/data'), { scheme: 'x402-eip3009', buyer: 3 })
    const { uses, nonces } = club.books()
    const response = await club.send('/data', { ...headers, ...paying })
    expect([response.status, response.headers.get('payment-entitlement')]).toEqual([200, null])
    expect(club.books()).toMatchObject({ uses, nonces })
    await club.served(headers)
    // A payment that is refused is not replaced by the sign-in.
    const spent = await club.signIn(buyer)
    await club.refused({ ...spent, ...paying }, { code: 'invalid-challenge', reason: /./ })
  })

  test('attack: a wallet without an entitlement writes nothing, however often it signs in', async () => {
    const before = club.books()
    const wallet = freshWallet()
    const calls = club.shop.calls()
    for (let turn = 0; turn < 50; turn++) await club.refused(await club.signIn(wallet), unused)
    expect(club.books()).toEqual(before)
    // Nor does it ask a node for the signature of a key.
    expect(
      club.shop.taps[base]?.calls.slice(calls).filter(({ method }) => method === 'eth_call'),
    ).toEqual([])
    await until('it still sells', async () => (await fetch(club.at('/data'))).status === 402)
  })

  test('attack: signatures that only a contract could accept are limited as refused credentials are', async () => {
    const limited = await startClub({
      edit: (text) => text.replace('paid_per_minute = 1000000', 'paid_per_minute = 40'),
    })
    try {
      const statuses: number[] = []
      await limited.shop.still(async () => {
        for (let turn = 0; turn < 8; turn++) {
          const signature = () => `0x${'ab'.repeat(100)}` as Hex
          statuses.push(
            (await limited.send('/data', await limited.signIn(buyer, '/data', { signature })))
              .status,
          )
        }
      })
      expect(statuses).toEqual([...Array(4).fill(402), ...Array(4).fill(429)])
    } finally {
      await limited.shop.stop()
    }
  })
})

const uriOf = (path: string) =>
  `${club.shop.config.service.baseUrl}/m/${path.startsWith('/') ? 'club' : ''}${path}`
const offer = async () => signInOf(await ask(club.at('/data')))

function assetOf(network: string): Hex {
  const found = club.shop.config.networks.find(({ id }) => id === network)?.asset.address
  if (found === undefined) throw new Error(`no ${network}`)
  return found
}

/** The nonce of a 402 with the time of another. */
async function crossNonce(): Promise<Record<string, string>> {
  const [one, other] = [await ask(club.at('/data')), await ask(club.at('/data?x=1'))]
  const { nonce = '' } = signInOf(other)?.info ?? {}
  return signIn(one, buyer, { signed: { nonce } })
}

/** A signature in the wrapper of ERC-6492. */
function wrapped(to: Hex, data: Hex, signature: Hex): Hex {
  const inner = encodeAbiParameters(parseAbiParameters('address, bytes, bytes'), [
    to,
    data,
    signature,
  ])
  return concat([inner, `0x${'6492'.repeat(16)}`])
}

function transferData(): Hex {
  return `0xa9059cbb${thief.address.slice(2).padStart(64, '0')}${'0'.repeat(63)}1`
}
