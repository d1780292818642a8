import { expect, test } from 'bun:test'
import { generateKeyPairSync } from 'node:crypto'
import { connect } from '../../src/acme/order'

/**
 * Connects to a CA whose directory has this many bytes of padding. Returns the path of its order
 * URL, or the message of the error.
 */
async function connectTo(padding: number): Promise<string> {
  using ca = Bun.serve({
    port: 0,
    fetch: ({ url }) =>
      Response.json({
        newNonce: `${url}nonce`,
        newAccount: `${url}account`,
        newOrder: `${url}order`,
        padding: 'x'.repeat(padding),
      }),
  })
  const { privateKey: key } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const { signal } = new AbortController()
  const found = connect({ directoryUrl: ca.url.href, key, signal, now: Date.now })
  return await found.then(
    ({ newOrder }) => newOrder.replace(ca.url.href, '/'),
    (error: Error) => error.message.replace(ca.url.host, 'the-ca'),
  )
}

test('attack: a CA cannot fill the memory with a long answer', async () => {
  expect(await connectTo(1_000_000)).toBe('/order')
  expect(await connectTo(2_000_000)).toBe('the CA at the-ca sent more than 1048576 bytes')
})
