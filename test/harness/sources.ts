import { join, normalize } from 'node:path'

/** An import as written. */
export type Import = {
  specifier: string
  /** Between `import` and `from`. */
  clause: string
  /** `import type`: removed at run time. */
  typeOnly: boolean
  dynamic: boolean
  /** The file of ours that it names, relative to the root. */
  target: string | undefined
}

export type Source = {
  /** Relative to the root, with slashes. */
  path: string
  text: string
  /** The text without comments and without the content of strings. */
  code: string
  imports: readonly Import[]
}

/** All TypeScript of the project with its imports; `files` replaces the disk. */
export async function read(
  root: string,
  files?: Readonly<Record<string, string>>,
): Promise<Source[]> {
  const texts = new Map(Object.entries(files ?? (await load(root))))
  const typed = [...texts].filter(([path]) => path.endsWith('.ts'))
  return typed.map(([path, text]) => ({
    path,
    text,
    code: withoutText(text),
    imports: importsOf(text).map((link) => ({
      ...link,
      target: resolve(path, link.specifier, texts),
    })),
  }))
}

async function load(root: string): Promise<Record<string, string>> {
  const texts: Record<string, string> = {}
  for (const pattern of [
    '{src,db,test}/**/*.ts',
    '{src,db,test}/**/*.{json,sql,html,css,svg,js}',
    '*.{json,toml}',
  ]) {
    for await (const path of new Bun.Glob(pattern).scan(root)) {
      texts[path] = path.endsWith('.ts') ? await Bun.file(join(root, path)).text() : ''
    }
  }
  return texts
}

// A clause contains no quotes, so a match cannot extend into the next statement.
const statement = /^(?:import|export)\s+(type\s+)?([^'";=()]*?)\s*from\s+['"]([^'"]+)['"]/gm
const bare = /^import\s+['"]([^'"]+)['"]/gm
const call = /\bimport\(\s*['"]([^'"]+)['"]\s*\)/g

function importsOf(text: string): Omit<Import, 'target'>[] {
  const plain = { clause: '', typeOnly: false }
  return [
    ...[...text.matchAll(statement)].map(([, type, clause = '', specifier = '']) => ({
      specifier,
      clause,
      typeOnly: type !== undefined,
      dynamic: false,
    })),
    ...[...text.matchAll(bare)].map(([, specifier = '']) => ({
      ...plain,
      specifier,
      dynamic: false,
    })),
    ...[...text.matchAll(call)].map(([, specifier = '']) => ({
      ...plain,
      specifier,
      dynamic: true,
    })),
  ]
}

function resolve(from: string, specifier: string, texts: ReadonlyMap<string, string>) {
  if (!specifier.startsWith('.')) return undefined
  const path = normalize(join(from, '..', specifier))
  return [path, `${path}.ts`, `${path}/index.ts`].find((candidate) => texts.has(candidate))
}

/**
 * Blanks comments and string contents. Contents of template literals stay, because they may be
 * code.
 */
function withoutText(text: string): string {
  return text.replace(
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"/g,
    (match) => (match.startsWith('/') ? '' : "''"),
  )
}

const packagePath = /^(\.\.\/)+node_modules\//

/** Whether an import names a file of ours. */
export function isRelative(specifier: string): boolean {
  return specifier.startsWith('.') && !packagePath.test(specifier)
}

/** The package of an import, which may name one of its files by a path. */
export function packageOf(specifier: string): string {
  const path = specifier.replace(packagePath, '')
  return path.split('/', path.startsWith('@') ? 2 : 1).join('/')
}
