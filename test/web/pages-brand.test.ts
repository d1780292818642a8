import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Logo } from '../../src/config/Config'
import { assetsOf, findAsset } from '../../src/web/assets'
import { layout, sendPage } from '../../src/web/public/layout'
import * as Theme from '../../src/web/Theme'
import { configOf, edited, linesOf, small } from '../harness/config'

/** The operator's colour and logo, and the bytes of a page. */

let directory: string
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'turnpike-logo-'))
})
afterAll(() => rmSync(directory, { recursive: true }))

const withService = (lines: string) => edited('[service]\n', `[service]\n${lines}\n`)

function pngOf(width: number, height: number): Uint8Array {
  const bytes = new Uint8Array(64)
  bytes.set([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
  const header = new DataView(bytes.buffer)
  header.setUint32(16, width)
  header.setUint32(20, height)
  return bytes
}

describe('the colour of the operator', () => {
  const folder = join(import.meta.dir, '../..', 'src/web')

  /** The variables of the pages for buyers, for light and for dark. */
  async function colours() {
    const light: Record<string, string> = {}
    const dark: Record<string, string> = {}
    for (const name of ['base.css', 'style.css']) {
      const text = await Bun.file(join(folder, name)).text()
      const pairs = text.matchAll(/--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);/g)
      for (const [, variable = '', first = '', second = ''] of pairs) {
        light[variable] = first
        dark[variable] = second
      }
    }
    return { light, dark }
  }

  test('every text of the style can be read on every background', async () => {
    for (const scheme of Object.values(await colours())) {
      const texts = ['text', 'quiet', 'accent', 'good', 'fair', 'bad']
      for (const text of texts)
        for (const background of ['page', 'surface', 'tint'])
          expect([
            text,
            background,
            Theme.contrast(scheme[text] ?? '', scheme[background] ?? '') >= Theme.contrastMin,
          ]).toEqual([text, background, true])
      expect(Theme.contrast(scheme['on-brand'] ?? '', scheme.brand ?? '')).toBeGreaterThan(
        Theme.contrastMin,
      )
      // Borders of controls: WCAG 1.4.11.
      expect(Theme.contrast(scheme.strong ?? '', scheme.surface ?? '')).toBeGreaterThan(3)
    }
  })

  test('any colour gives shades that can be read, and stays the colour of buttons', async () => {
    const { light, dark } = await colours()
    const backgrounds = ['page', 'surface', 'tint']
    for (let i = 0; i < 4096; i++) {
      const accent = `#${[i >> 8, (i >> 4) & 15, i & 15].map((part) => part.toString(16).repeat(2)).join('')}`
      const theme = Theme.from(accent)
      expect(theme.brand).toBe(accent)
      const ratios = [
        Theme.contrast(theme.brand, theme.onBrand),
        ...backgrounds.map((name) => Theme.contrast(theme.light, light[name] ?? '')),
        ...backgrounds.map((name) => Theme.contrast(theme.dark, dark[name] ?? '')),
      ]
      expect([accent, Math.min(...ratios) >= Theme.contrastMin]).toEqual([accent, true])
    }
  })

  test('a colour that can be read is kept as it is', () => {
    expect(Theme.from('#0b6060')).toMatchObject({ light: '#0b6060', onBrand: '#ffffff' })
    expect(Theme.from('#ffcc00').onBrand).toBe('#000000')
  })

  test('error: a text that is not a colour of six digits is refused', () => {
    for (const accent of ['#fff', 'teal', '0b6060', '#0b606g', '#0b6060;}body{'])
      expect(linesOf(withService(`accent = "${accent}"`))).toEqual([
        expect.stringContaining('accent must be a colour of six hexadecimal digits'),
      ])
    expect(configOf(withService('accent = "#0B60AA"')).service.accent).toBe('#0b60aa')
  })
})

describe('the logo of the operator', () => {
  const read = (name: string, content: string | Uint8Array) => {
    writeFileSync(join(directory, name), content)
    const text = withService(`logo = "${name}"`)
    return { text, options: { file: join(directory, 'm.toml') } }
  }
  const logoOf = (name: string, content: string | Uint8Array) => {
    const { text, options } = read(name, content)
    return configOf(text, options).service.logo
  }
  const faultOf = (name: string, content: string | Uint8Array) => {
    const { text, options } = read(name, content)
    return linesOf(text, options)[0]
  }

  test('type and size of a logo come from its bytes', () => {
    const start = '\ufeff<?xml version="1.0"?>\n<!-- a -->\n<!DOCTYPE svg>\n'
    const cases: [string | Uint8Array, Partial<Logo>][] = [
      [pngOf(300, 100), { type: 'image/png', width: 300, height: 100 }],
      [
        `${start}<svg viewBox="0 0 40 20" xmlns="http://www.w3.org/2000/svg"/>`,
        { type: 'image/svg+xml', width: 40, height: 20 },
      ],
      ['<svg width="12px" height="6" viewBox="0 0 1 1"></svg>', { width: 12, height: 6 }],
      ['<svg width="100%"></svg>', { width: 1, height: 1 }],
    ]
    // The name says nothing about the content.
    for (const [content, expected] of cases)
      expect(logoOf('logo.txt', content)).toMatchObject(expected)
  })

  test('error: a file that is missing, too large or no image is named with its line', () => {
    const line = `${join(directory, 'm.toml')}:3: logo`
    expect(linesOf(withService('logo = "none.svg"'), { file: join(directory, 'm.toml') })).toEqual([
      `${line} names a file that cannot be read; the path begins where this file is (found "none.svg")`,
    ])
    expect(faultOf('large.png', new Uint8Array(65_537))).toBe(
      `${line} must name a file of at most 64 KiB; this one has 65537 bytes (found "large.png")`,
    )
    for (const content of ['<html><svg></svg></html>', 'GIF89a', '', new Uint8Array([0xff, 0xfe])])
      expect(faultOf('other.svg', content)).toContain('must name an SVG or PNG file')
    const own = { file: join(directory, 'm.toml') }
    expect(linesOf(withService('logo = "."'), own)[0]).toContain('must name a file')
  })

  test('attack: an SVG with a script is only an image, and opened by its address it runs nothing', () => {
    const config = configOf(...argumentsOf('<svg><script>alert(1)</script></svg>'))
    const page = layout(config, { title: 'x', path: '/', main: { markup: '' } })
    const [, path = ''] = /<img src="([^"]+)" alt="" width="28" height="28">/.exec(page) ?? []
    expect(page).not.toContain('<script>')
    const found = findAsset(config.service, new Request(`http://localhost${path}`))
    expect(found?.headers.get('content-type')).toBe('image/svg+xml')
    expect(found?.headers.get('content-security-policy')).toBe("default-src 'none'; sandbox")
    expect(found?.headers.get('x-content-type-options')).toBe('nosniff')
  })

  test('a wide logo keeps its proportions up to a limit', () => {
    const pageOf = (content: Uint8Array) =>
      layout(configOf(...argumentsOf(content)), { title: 'x', path: '/', main: { markup: '' } })
    expect(pageOf(pngOf(300, 100))).toContain('width="84" height="28"')
    expect(pageOf(pngOf(5000, 10))).toContain('width="160" height="28"')
  })

  function argumentsOf(content: string | Uint8Array) {
    const { text, options } = read('logo', content)
    return [text, options] as const
  }
})

describe('the bytes of a page', () => {
  const config = configOf(small)
  const paragraphs = '<p>text</p>'.repeat(1000)
  const page = { title: 'One', path: '/', main: { markup: paragraphs } } as const
  const markup = layout(config, page)
  const get = (headers: Record<string, string>, options = {}) =>
    sendPage(config, new Request('http://localhost/', { headers }), page, options)

  test('pages are compressed for a client that takes gzip, with a tag of their own', async () => {
    const packed = get({ 'accept-encoding': 'br, gzip;q=0.5' })
    expect(packed.headers.get('content-encoding')).toBe('gzip')
    expect(packed.headers.get('vary')).toBe('Accept-Encoding')
    const bytes = new Uint8Array(await packed.arrayBuffer())
    expect(bytes.length).toBeLessThan(2000)
    expect(new TextDecoder().decode(Bun.gunzipSync(bytes))).toBe(markup)
    for (const accepted of ['', 'identity', 'gzip;q=0', 'br', 'gzip; q=0.000']) {
      const whole = get({ 'accept-encoding': accepted })
      expect(whole.headers.get('content-encoding')).toBeNull()
      expect(whole.headers.get('vary')).toBe('Accept-Encoding')
      expect(whole.headers.get('etag')).not.toBe(packed.headers.get('etag'))
      expect(await whole.text()).toBe(markup)
    }
    const varied = get({}, { headers: { vary: 'Accept' } })
    expect(varied.headers.get('vary')).toBe('Accept, Accept-Encoding')
    const etag = packed.headers.get('etag') ?? ''
    const again = get({ 'accept-encoding': 'gzip', 'if-none-match': etag })
    expect([again.status, again.headers.get('vary')]).toEqual([304, 'Accept-Encoding'])
  })

  test('assets are compressed once, and named by their content', () => {
    const { service } = configOf(withService('accent = "#123456"'))
    const { script, style } = assetsOf(service)
    expect(assetsOf(service).style).toBe(style)
    expect(script.body.gzip()).toBe(script.body.gzip())
    expect(style.path).not.toBe(assetsOf({ ...service, accent: undefined }).style.path)
    expect(style.body.whole.length).toBeGreaterThan(
      assetsOf({ ...service, accent: undefined }).style.body.whole.length,
    )
  })
})
