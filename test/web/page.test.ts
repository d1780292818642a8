import { describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { blocksOf, matches } from '../harness/page'

/** How `soak:quickstart` reads a page; the commands themselves take half a minute. */

const page = await Bun.file(join(import.meta.dir, '../../docs/quickstart.md')).text()
const fenced = (kind: string, text: string) => `\`\`\`${kind}\n${text}\n\`\`\`\n`

describe('commands of a page', () => {
  test('every block of the quickstart names its terminal and what it prints', () => {
    const blocks = blocksOf(page)
    expect(blocks.map(({ title }) => title)).toContain('4. Describe what you sell')
    for (const { expected } of blocks) expect(expected).not.toEqual([])
    const lasting = blocks.filter(({ isLasting }) => isLasting)
    expect(lasting.map(({ terminal }) => terminal)).toEqual(['1', '2', '3'])
    // Nothing is typed into a terminal that is busy.
    for (const block of lasting) {
      const later = blocks.slice(blocks.indexOf(block) + 1)
      expect(later.map(({ terminal }) => terminal)).not.toContain(block.terminal)
    }
  })

  test('error: a block without a terminal, without an output, or an output alone is refused', () => {
    const [sh, text] = [fenced('sh', '# terminal 1\nls'), fenced('text', 'a')]
    expect(blocksOf(sh + text)).toHaveLength(1)
    expect(() => blocksOf(fenced('sh', 'ls') + text)).toThrow('no terminal is named')
    expect(() => blocksOf(sh)).toThrow('does not show what its last commands print')
    expect(() => blocksOf(sh + sh + text)).toThrow('does not show what this prints')
    expect(() => blocksOf(sh + text + text)).toThrow('no commands print this')
  })

  test('an output has the lines of the page in their order', () => {
    const output = 'notice\r\na 1 b\nc\nd\n'
    for (const [expected, isRight] of [
      [['a ... b', 'c', 'd'], true],
      [['a ... b', '...', 'd'], true],
      [['c', '...'], true],
      [['a ... b', 'd'], false],
      [['d', '...', 'c'], false],
      [['a ... c'], false],
      [['a'], false],
      [['...', 'e'], false],
    ] as const)
      expect([expected, matches(expected, output)]).toEqual([expected, isRight])
    expect(matches(['a', 'b'], 'a')).toBe(false)
  })
})
